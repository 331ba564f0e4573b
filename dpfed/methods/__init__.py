"""The methods: what each is made of, what is true of it, and which settings it refuses."""
