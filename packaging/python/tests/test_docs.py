"""The programs of docs/python.md print what the page says."""

import contextlib
import io
import re
import unittest

from test_abi import ROOT


class DocsTest(unittest.TestCase):
    def test_programs(self):
        text = (ROOT / 'docs' / 'python.md').read_text()
        pairs = re.findall(r'^```python\n(.*?)^```\n\n```text\n(.*?)^```', text, re.MULTILINE | re.DOTALL)
        self.assertEqual(len(pairs), text.count('```python'))
        self.assertGreater(len(pairs), 1)
        names = {}
        for program, said in pairs:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(program, names)
            self.assertEqual(printed.getvalue(), said)


if __name__ == '__main__':
    unittest.main()
