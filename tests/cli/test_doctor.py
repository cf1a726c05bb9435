#!/usr/bin/env python3
"""doctor, and the log options that every command has."""
from cli_support import CliTest, main


class Doctor(CliTest):
    def test_record_and_text_name_the_same_findings(self):
        record = self.record("doctor")
        text = self.ok("doctor").decode()
        self.assertTrue(record["findings"])
        for finding in record["findings"]:
            self.assertIn(finding["name"], text)
            self.assertIn(finding["state"], ("ok", "note", "change"))

    def test_log_options(self):
        for args in (["--log-level", "debug"], ["--log-format", "json"], ["--log-level", "error", "--log-format", "text"]):
            self.record("doctor", *args)
        self.fails("doctor", "--log-level", "loud", code=2, mentions=("--log-level", "error|warn|info|debug"))


if __name__ == "__main__":
    main()
