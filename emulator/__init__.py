"""The switch, the network and the training job in software, each in its own subpackage."""
