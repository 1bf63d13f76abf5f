"""An agent that does its work where it belongs: in the step.

It reads the task and the copies of its inputs, adds the sections that the template asks
for and the document lacks, and writes the whole document to the step's `output.md`.
"""

import json
from pathlib import Path

INPUTS = Path("inputs")


def headings(text):
    """The level-2 headings of a document, in order."""
    return [line[3:].strip() for line in text.splitlines() if line.startswith("## ")]


def blocking_section(facts):
    """What must be settled first, from the facts that the steps share."""
    lines = ["## 阻塞信息", "", "以下问题在得到答复之前，受影响的里程碑不能开始。", ""]
    lines += ["| 问题 | 负责人 | 期望答复 | 受影响的里程碑 |", "| --- | --- | --- | --- |"]
    for item in facts["blocking"]:
        lines.append(
            f"| {item['issue']} | {item['owner']} | {item['due']} | {item['affects']} |"
        )
    return "\n".join(lines) + "\n\n"


def non_blocking_section(facts):
    """What is known and can wait."""
    lines = ["## 非阻塞信息", "", "以下问题已有安排，不影响推进。", ""]
    for item in facts["non_blocking"]:
        lines.append(f"- {item['issue']}。负责人：{item['owner']}；安排：{item['planned']}。")
    return "\n".join(lines) + "\n\n"


def main():
    print(Path("TASK.md").read_text(encoding="utf-8").splitlines()[0])
    document = (INPUTS / "output.snapshot.md").read_text(encoding="utf-8")
    template = (INPUTS / "template.snapshot.md").read_text(encoding="utf-8")
    facts = json.loads(
        (INPUTS / "blackboard.snapshot.json").read_text(encoding="utf-8")
    )
    missing = [name for name in headings(template) if name not in headings(document)]
    print("缺少：" + "、".join(missing))

    written = {
        "阻塞信息": blocking_section(facts),
        "非阻塞信息": non_blocking_section(facts),
    }
    added = "".join(written[name] for name in missing)
    document = document.replace("## 范围\n", added + "## 范围\n", 1)

    Path("output.md").write_text(document, encoding="utf-8")
    print("已写入 output.md，共 " + str(len(headings(document))) + " 节。")
    print("Outcome: SUCCESS")


if __name__ == "__main__":
    main()
