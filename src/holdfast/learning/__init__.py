"""Learning from a stream of tasks: streams, memory, augmentation, the learner, the base of all methods, the loop."""
