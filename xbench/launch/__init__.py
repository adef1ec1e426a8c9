"""Parent side of a launch: start the ranks of every job, watch them, and end them."""
