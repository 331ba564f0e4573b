"""What the server does with the sum: state in, state out."""
