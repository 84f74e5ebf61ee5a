"""What each way of using many GPUs costs: memory of one rank, bytes on the wire, time. One module a way."""
