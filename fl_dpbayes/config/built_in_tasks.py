"""What is predicted from what in each data set that the project knows."""

from fl_dpbayes.config.task import Task

BUILT_IN_TASKS = {
    "digits": Task(input_shape=(1, 8, 8), classes=10),
    "mnist": Task(input_shape=(1, 28, 28), classes=10),
    "pneumonia": Task(input_shape=(1, 28, 28), classes=2),
    "heart": Task(input_shape=(15,), classes=2),
}
