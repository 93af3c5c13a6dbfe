"""Which tasks of a pool begin, and which results count."""

from typing import Any

from daskxml.session.task_pool import HERE, PIECE, Task, TaskPool


class Slots(TaskPool):
    """A pool with so many slots, whose tasks are ended by the test."""

    now_s = 0.0
    here = "here"

    def __init__(self, slots: int) -> None:
        super().__init__({"a": slots})
        self.begun: list[Task] = []

    def choose(self, task: Task) -> str | None:
        return "a" if len(self.under_way) < self.slots["a"] else None

    def begin(self, task: Task) -> None:
        self.begun.append(task)

    def end(self, task: Task) -> None:
        task.result = task.function(*self.resolved(task.args))
        self.done(task, "a", 0.5, task.result)


def test_pieces_begin_in_their_order_after_all_else() -> None:
    pool = Slots(2)
    pieces = [pool.submit(PIECE, int, work=1.0) for _ in range(3)]
    plan = pool.submit("plan", int)
    pool.fill()
    assert pool.begun == [plan, pieces[0]]
    pool.end(plan)
    pool.fill()
    assert pool.begun == [plan, *pieces[:2]]
    assert pool.waiting == pieces[2:]
    assert pool.busy_s == {"a": 0.5}  # of what was no piece


def test_a_task_begins_with_the_results_that_it_takes() -> None:
    pool, seen = Slots(3), list[Any]()
    first, second = pool.submit("one", lambda: 1), pool.submit("two", lambda: 2)
    both = pool.submit("both", lambda *args: seen.append(args), HERE, [first, second], first, "x")
    pool.fill()
    assert pool.begun == [first, second]
    pool.end(second)
    pool.fill()
    assert both in pool.waiting
    pool.end(first)
    pool.fill()
    pool.end(both)
    assert seen == [("here", [1, 2], 1, "x")]


def test_a_result_that_was_dropped_does_not_count_and_one_that_comes_again_does() -> None:
    pool, values = Slots(2), list[Any]()
    kept, dropped = (pool.submit("some", lambda: 7, then=values.append) for _ in range(2))
    waits = pool.submit("waits", int, dropped)
    pool.fill()
    pool.drop([dropped, waits])
    pool.end(dropped)
    assert not dropped.is_done
    assert not pool.waiting
    pool.end(kept)
    pool.done(kept, "b", 0.25, 7)  # computed once more by another, whose result is there now
    assert (kept.worker, kept.busy_s, values) == ("b", 0.25, [7])
