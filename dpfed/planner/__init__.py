"""The planner: questions about a plan, their answers, and the page that shows them."""
