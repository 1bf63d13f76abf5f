"""An agent that does what the one of the incident did.

It goes up to the parent workspace, reads the template and the document there, edits the
parent's document in place, leaves no `output.md` of its own, and reports success.
"""

from pathlib import Path

PARENT = Path("../..")

SECTIONS = """\
## 阻塞信息

- 等待法务确认数据保留期限。

## 非阻塞信息

- 图表配色待统一。

"""


def main():
    template = (PARENT / "template.md").read_text(encoding="utf-8")
    document = (PARENT / "output.md").read_text(encoding="utf-8")
    print(f"读取 ../../template.md（{len(template)} 字）和 ../../output.md（{len(document)} 字）")

    document = document.replace("## 范围\n", SECTIONS + "## 范围\n", 1)
    (PARENT / "output.md").write_text(document, encoding="utf-8")

    print("已补齐「阻塞信息」和「非阻塞信息」两个必填章节。")
    print("Outcome: SUCCESS")


if __name__ == "__main__":
    main()
