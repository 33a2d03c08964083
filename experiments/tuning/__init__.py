"""The search for hyper-parameters over folds of the training classes, for `experiments.study`."""
