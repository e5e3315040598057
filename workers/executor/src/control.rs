//! The frames between an executor and its agent, on standard input and output. Nothing else may write to standard output.

use crate::keys::LinkKeys;
use crate::tokens::WriterTokens;
use events_schema::TraceContext;
use events_schema::batch::{DecodeError, from_bytes};
use events_schema::control::{CONTROL_FRAMES, FromExecutor, ToExecutor};
use events_schema::frame::FrameTooLong;
use events_schema::orders::JobOrder;
use minicbor::{Decode, Encode};
use std::io::{self, Read, Write};

/// Why a control frame cannot be read or written. All: stop, the agent is gone or of another build.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The pipe broke or ended within a frame.
    #[error("the control pipe to the agent failed")]
    Pipe(#[from] io::Error),
    /// Longer than both sides agreed on.
    #[error(transparent)]
    TooLong(#[from] FrameTooLong),
    /// Not a frame of this build.
    #[error("control frame cannot be read")]
    Decode(#[from] DecodeError),
}

/// Reads one frame; `None` when the pipe ended between two.
pub fn read_frame<T: for<'b> Decode<'b, ()>>(input: &mut impl Read) -> Result<Option<T>, ControlError> {
    let mut length = [0; 4];
    match input.read_exact(&mut length[..1]) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    input.read_exact(&mut length[1..])?;
    let mut bytes = vec![0; CONTROL_FRAMES.length(length)?];
    input.read_exact(&mut bytes)?;
    Ok(Some(from_bytes(&bytes)?))
}

/// Writes one frame.
pub fn write_frame<T: Encode<()>>(output: &mut impl Write, value: &T) -> Result<(), ControlError> {
    output.write_all(&CONTROL_FRAMES.cut(value)?)?;
    output.flush()?;
    Ok(())
}

/// Says things to the agent.
pub struct Agent<W: Write> {
    output: W,
}

impl<W: Write> Agent<W> {
    /// Speaks on this pipe.
    pub fn new(output: W) -> Self {
        Self { output }
    }

    /// One frame.
    pub fn say(&mut self, message: &FromExecutor) -> Result<(), ControlError> {
        write_frame(&mut self.output, message)
    }
}

/// What the agent says while the executor runs.
#[derive(Debug)]
pub enum Heard {
    /// What comes next follows from this.
    Trace(TraceContext),
    /// A newer order.
    Order(Box<JobOrder>),
    /// The slot is taken back.
    Leave {
        /// Time until the kill.
        within_ms: u64,
    },
    /// It is let go.
    Deadline {
        /// Time until the kill.
        within_ms: u64,
    },
    /// It may compute in so much of the time.
    Share {
        /// In thousandths.
        thousandths: u16,
    },
    /// Nothing is left to do.
    Stop,
}

/// Reads the agent's frames and passes them on until the pipe ends or nobody takes them. Ends the process by itself with the agent, so that this
/// does not wait for the trainer to look up from a gradient; for the same reason keys of links and names of objects are learned here.
pub(crate) fn listen(mut input: impl Read, keys: &LinkKeys, tokens: &WriterTokens, pass_on: impl Fn(Heard) -> bool) {
    loop {
        let heard = match read_frame(&mut input) {
            Ok(Some(ToExecutor::Order(order))) => {
                keys.learn(&order.link_keys);
                tokens.learn(&order);
                Heard::Order(order)
            }
            Ok(Some(ToExecutor::Leave { within_ms })) => Heard::Leave { within_ms },
            Ok(Some(ToExecutor::Deadline { within_ms })) => Heard::Deadline { within_ms },
            Ok(Some(ToExecutor::Share { thousandths })) => Heard::Share { thousandths },
            Ok(Some(ToExecutor::Trace(trace))) => Heard::Trace(trace),
            Ok(Some(ToExecutor::Start(_))) => continue,
            Ok(Some(ToExecutor::Stop)) => Heard::Stop,
            Ok(None) => {
                tracing::warn!("the agent is gone");
                end_with_all();
            }
            Err(error) => {
                tracing::error!(%error, "the agent cannot be understood");
                end_with_all();
            }
        };
        if !pass_on(heard) {
            return;
        }
    }
}

/// Ends this process with everything that it started: nobody is left who would.
fn end_with_all() -> ! {
    // A program that was not started by an agent may be in the group of its caller.
    if rustix::process::getpgrp() == rustix::process::getpid() {
        let _ = rustix::process::kill_current_process_group(rustix::process::Signal::KILL);
    }
    std::process::exit(1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn frames_survive_the_pipe_and_its_end_is_seen() {
        let mut pipe = Vec::new();
        write_frame(&mut pipe, &ToExecutor::Leave { within_ms: 9 }).unwrap();
        write_frame(&mut pipe, &ToExecutor::Stop).unwrap();
        let mut input = pipe.as_slice();
        assert_eq!(read_frame(&mut input).unwrap(), Some(ToExecutor::Leave { within_ms: 9 }));
        assert_eq!(read_frame(&mut input).unwrap(), Some(ToExecutor::Stop));
        assert_eq!(read_frame::<ToExecutor>(&mut input).unwrap(), None);
        for cut in [2, 6] {
            assert!(matches!(read_frame::<ToExecutor>(&mut &pipe[..cut]), Err(ControlError::Pipe(_))), "{cut}");
        }
        assert!(matches!(read_frame::<ToExecutor>(&mut &u32::MAX.to_le_bytes()[..]), Err(ControlError::TooLong(_))));
    }
}
