"""Trials of captures into CUDA graphs."""

import ctypes

from gpu import Failure
from harness import trial

WORDS = 1 << 18


def code(work):
    """Returns the error of a call, 0 if there is none."""
    try:
        work()
        return 0
    except Failure as error:
        return error.code


@trial("captures", "errors", 1, "an unjoined stream (904), a wait for a stream outside (905) and a wait of the host (900) end a capture")
def errors(r):
    g = r.gpu
    main, side, x = g.stream(), g.stream(), g.alloc(WORDS)

    def fork(joins):
        g.order(main, side)
        g.fill(x, 7, WORDS, side)
        if joins:
            g.order(side, main)

    outside = g.event(side)
    r.control(code(lambda: g.capture(main, lambda: fork(True))) == 0, "a stream that joins")
    found = {
        "unjoined": code(lambda: g.capture(main, lambda: fork(False))),
        "outside": code(lambda: g.capture(main, lambda: g.call("cuStreamWaitEvent", main, outside, 0))),
        "host waits": code(lambda: g.capture(main, lambda: g.sync(main))),
    }
    for name, it in found.items():
        r.value(name, it)
    r.fault(all(found.values()))


@trial("captures", "missed work", 1, "a replay lacks what a stream does that takes no part")
def missed_work(r):
    g = r.gpu
    main, side, x = g.stream(), g.stream(), g.alloc(WORDS)

    def replay(apart):
        def program():
            if not apart:
                g.order(main, side)
            g.fill(x, 9, WORDS, side)
            if not apart:
                g.order(side, main)

        graph = g.capture(main, program)
        g.sync(side)
        g.fill(x, 7, WORDS, main)
        g.call("cuGraphLaunch", graph, main)
        return g.wrong(x, 9, WORDS, main)

    r.compare(replay, "the stream takes part", WORDS, "words are not written by the replay")


@trial("captures", "memory that a graph leaves", 1, "the second launch of a graph that leaves an allocation fails (m26)")
def left_memory(r):
    g = r.gpu
    main = g.stream()

    def second_launch(leaves):
        at = ctypes.c_uint64()

        def program():
            g.call("cuMemAllocAsync", ctypes.byref(at), 4 * WORDS, main)
            g.fill(at.value, 7, WORDS, main)
            if not leaves:
                g.call("cuMemFreeAsync", at.value, main)

        graph = g.capture(main, program)
        g.call("cuGraphLaunch", graph, main)
        g.sync(main)
        return code(lambda: g.call("cuGraphLaunch", graph, main))

    r.control(second_launch(False) == 0, "the graph frees what it allocates")
    found = second_launch(True)
    r.fault(found != 0, f"error {found}")
