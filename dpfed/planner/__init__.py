"""Planner of privacy budgets: questions about a plan, their answers, and the page that shows both."""
