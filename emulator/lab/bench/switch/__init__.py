"""What `switchml bench switch` measures: engines, start-up, and frames through a real port."""
