"""The experiments of `switchml mininet`, their tables and plots."""
