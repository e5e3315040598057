"""The package as a wheel: built without a network, installed into a fresh environment, and training there with the same bits."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import unittest

import harness
from harness import JOBS, PACKAGE


@unittest.skipUnless(harness.has("pip") and harness.has("setuptools"), "pip or setuptools is not installed")
class Wheel(unittest.TestCase):
    def test_a_wheel_trains_in_an_environment_of_its_own(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory())
        source = os.path.join(folder, "source")
        os.mkdir(source)
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(os.path.join(PACKAGE, name), source)
        shutil.copytree(os.path.join(PACKAGE, "ebb"), os.path.join(source, "ebb"), ignore=shutil.ignore_patterns("__pycache__"))
        offline = {**os.environ, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONPATH": ""}
        self.run_there(sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", folder, source, env=offline)
        (wheel,) = glob.glob(os.path.join(folder, "ebb-*.whl"))
        self.assertTrue(wheel.endswith("-py3-none-any.whl"), wheel)

        python = os.path.join(folder, "venv", "bin", "python")
        self.run_there(sys.executable, "-m", "venv", "--without-pip", os.path.join(folder, "venv"), env=offline)
        packages = glob.glob(os.path.join(folder, "venv", "lib", "python*", "site-packages"))[0]
        self.run_there(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", packages, wheel, env=offline)
        # What people have there already: torch.
        with open(os.path.join(packages, "torch.pth"), "w", encoding="utf-8") as file:
            file.write("\n".join(dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])))
        where = self.run_there(python, "-c", "import ebb; print(ebb.__file__)", env=offline)
        self.assertTrue(where.startswith(packages), where)
        command = [python, "-m", "ebb.run", "vision:Job", "--code", JOBS, "--workers", "4", "--steps", "2", "--batch-size", "4", "--seed", "3"]
        printed = self.run_there(*command, env=offline)
        digest = harness.here(2, entry="vision:Job", spec={"steps": 2})[1]
        self.assertIn(f"digest {digest}", printed)

    def run_there(self, *command: str, env: dict[str, str]) -> str:
        """What a command prints, run from a folder that has no packages."""
        done = subprocess.run(command, env=env, cwd=tempfile.gettempdir(), capture_output=True, text=True, check=False)
        self.assertEqual(0, done.returncode, done.stderr)
        return done.stdout


if __name__ == "__main__":
    unittest.main()
