"""The real worlds behind the loop: what `wait` and `execute` mean where something really runs."""
