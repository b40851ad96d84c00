"""The emulator's part of the `import switchml` API, for scripts and notebooks; `switchml.emulate` and others are
registered as entry points, as commands are."""
