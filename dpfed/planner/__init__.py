"""The planner: what is asked, what the answer is, and the page that shows it."""
