"""What `switchml bench codecs` measures: codecs beside others' compressors."""
