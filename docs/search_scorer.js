// Guides come before the reference, the changelog and pages made by commands.
var Scorer = {
  score: ([docname, , , , score]) => (/^(reference\/|changelog|claimed|security|configuration|methods)/.test(docname) ? score - 20 : score),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
