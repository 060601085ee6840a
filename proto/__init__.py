"""What crosses a process boundary: messages grouped by the edge they travel on, and the frames around them."""
