//! The `ebb` program: hands its arguments to the library and its exit code to the shell. Next: `lib.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ebb::run(std::env::args_os())
}
