// During a run: requests the page again from its server, and replaces the changed content.
setInterval(async () => {
  if (document.hidden) return;
  try {
    const text = await (await fetch(location.href, { cache: "no-store" })).text();
    const fresh = new DOMParser().parseFromString(text, "text/html").querySelector("main");
    const here = document.querySelector("main");
    if (!fresh || fresh.dataset.state === here.dataset.state) return;
    here.replaceWith(fresh);
  } catch { /* the server has ended, or will answer again */ }
}, 2000);
