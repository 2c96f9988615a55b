"""Trials of captures into CUDA graphs."""

import ctypes

from harness import trial

WORDS = 1 << 18


@trial("captures", "errors", 1, "an unjoined stream (904), a wait for a stream outside (905) and a wait of the host (900) end a capture", "the capture ends without an error")
def errors(r):
    from gpu import Failure

    g = r.gpu
    main, side, x = g.stream(), g.stream(), g.alloc(WORDS)

    def fork(joins):
        g.order(main, side)
        g.fill(x, 7, WORDS, side)
        if joins:
            g.order(side, main)

    def code(work):
        try:
            g.capture(main, work)
            return 0
        except Failure as error:
            return error.code

    outside = g.event(side)
    r.control(code(lambda: fork(True)) == 0, "a stream that joins")
    found = {
        "unjoined": code(lambda: fork(False)),
        "outside": code(lambda: g.call("cuStreamWaitEvent", main, outside, 0)),
        "host waits": code(lambda: g.sync(main)),
    }
    for name, it in found.items():
        r.value(name, it)
    r.fault(all(found.values()))


@trial("captures", "missed work", 1, "a replay lacks what a stream does that takes no part", "the replay has it")
def missed_work(r):
    g = r.gpu
    main, side, x = g.stream(), g.stream(), g.alloc(WORDS)

    def replay(joins):
        def program():
            if joins:
                g.order(main, side)
            g.fill(x, 9, WORDS, side)
            if joins:
                g.order(side, main)

        graph = g.capture(main, program)
        g.sync(side)
        g.fill(x, 7, WORDS, main)
        g.call("cuGraphLaunch", graph, main)
        wrong = g.differ(x, 9, WORDS, main)
        g.sync(main)
        return g.count(wrong)

    r.control(replay(True) == 0, "the stream takes part")
    found = replay(False)
    r.fault(found == WORDS, f"{found} words are not written by the replay")


@trial("captures", "memory that a graph leaves", 1, "the second launch of a graph that leaves an allocation fails (m26)", "it launches")
def left_memory(r):
    from gpu import Failure

    g = r.gpu
    main = g.stream()

    def second_launch(frees):
        at = ctypes.c_uint64()

        def program():
            g.call("cuMemAllocAsync", ctypes.byref(at), 4 * WORDS, main)
            g.fill(at.value, 7, WORDS, main)
            if frees:
                g.call("cuMemFreeAsync", at.value, main)

        graph = g.capture(main, program)
        g.call("cuGraphLaunch", graph, main)
        g.sync(main)
        try:
            g.call("cuGraphLaunch", graph, main)
            g.sync(main)
            return 0
        except Failure as error:
            return error.code

    r.control(second_launch(True) == 0, "the graph frees what it allocates")
    found = second_launch(False)
    r.fault(found != 0, f"error {found}")
