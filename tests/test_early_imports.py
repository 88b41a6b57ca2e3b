"""What a process that does nothing but run imports early."""
import subprocess
import sys

PROGRAM = """
import sys, threading
from alma_jax import config as configs
from alma_jax.runs import early_imports
early_imports.start(configs.parse(configs.base()))
for thread in threading.enumerate():
  if thread is not threading.current_thread():
    thread.join()
print([name in sys.modules for name in ("tensorboardX", "matplotlib", "torch")])
import torch
"""


def test_tensorboardx_does_not_find_torch(tmp_path):
  (tmp_path / "torch.py").write_text("print('torch is imported')")
  found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True,
                         env={"PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}"})
  assert found.stdout.splitlines() == ["[True, True, False]", "torch is imported"]  # and it can be imported later
