"""Measurements of `switchml bench codecs`: codecs compared with third-party compressors."""
