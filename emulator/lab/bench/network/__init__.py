"""Measurements of `switchml bench network`: hosts on slow links, in network namespaces."""
