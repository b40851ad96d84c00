"""What `import switchml` offers of the emulator, for scripts and notebooks; `switchml.emulate` and the like are found
here by way of entry points, as commands are."""
