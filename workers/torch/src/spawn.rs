//! Starting a program where the machine may have no room for one this moment. Knows no program.

use rustix::io::Errno;
use std::io;
use std::process::{Child, Command};
use std::time::Duration;

/// Pauses between attempts. A server that has no room for a process for longer than all of them has none for a job either.
const PAUSES: [Duration; 4] =
    [Duration::from_millis(50), Duration::from_millis(200), Duration::from_millis(800), Duration::from_secs(2)];

/// Starts it; tries again where that may help.
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    patiently(&PAUSES, || command.spawn())
}

fn patiently<T>(pauses: &[Duration], mut start: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for pause in pauses {
        match start() {
            Err(error) if !never_starts(&error) => {
                tracing::warn!(%error, "a program cannot be started yet");
                std::thread::sleep(*pause);
            }
            done => return done,
        }
    }
    start()
}

/// Whether a program that did not start for this reason will not start later either: it is the program's fault, and not that of a server
/// that has no room for another process, or no more open files.
#[must_use]
pub fn never_starts(error: &io::Error) -> bool {
    const LASTING: [Errno; 9] = [
        Errno::NOENT,
        Errno::ACCESS,
        Errno::PERM,
        Errno::NOTDIR,
        Errno::INVAL,
        Errno::NOEXEC,
        Errno::TOOBIG,
        Errno::LOOP,
        Errno::NAMETOOLONG,
    ];
    // The standard library refuses some by itself, without a number.
    error.kind() == io::ErrorKind::InvalidInput
        || error.raw_os_error().is_some_and(|number| LASTING.iter().any(|lasting| lasting.raw_os_error() == number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_tried_again_and_what_lasts_is_not() {
        for (fault, tries) in
            [(Errno::AGAIN, 3), (Errno::MFILE, 3), (Errno::NOMEM, 3), (Errno::NOENT, 1), (Errno::NOEXEC, 1)]
        {
            let mut tried = 0;
            let started = patiently(&[Duration::ZERO; 2], || {
                tried += 1;
                Err::<(), _>(io::Error::from(fault))
            });
            assert_eq!((started.is_err(), tried), (true, tries), "{fault}");
        }
        let mut tried = 0;
        let started = patiently(&PAUSES[..1], || {
            tried += 1;
            if tried == 1 { Err(io::Error::from(Errno::AGAIN)) } else { Ok(tried) }
        });
        assert_eq!(started.ok(), Some(2));
    }
}
