"""An agent that does its work and leaves a writer behind.

The document that it writes is good. But a background process of its own, detached by a
double fork, goes on appending to that document after the agent has ended: nobody can
say what the file will hold when it is read.
"""

import os
import time

from good_agent import main as do_the_work


def leave_a_writer_behind():
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    while True:
        with open("output.md", "a", encoding="utf-8") as file:
            file.write(f"<!-- 自动保存 {time.time():.3f} -->\n")
        time.sleep(0.05)


def main():
    do_the_work()
    leave_a_writer_behind()


if __name__ == "__main__":
    main()
