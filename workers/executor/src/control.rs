//! The frames between an executor and its agent, on standard input and output. Nothing else may write to standard output.

use crate::inbox::Event;
use crate::keys::LinkKeys;
use crate::tokens::WriterTokens;
use events_schema::batch::{DecodeError, from_bytes};
use events_schema::control::{FrameTooLong, FromExecutor, ToExecutor, frame_len, to_frame};
use minicbor::{Decode, Encode};
use std::io::{self, Read, Write};
use std::sync::mpsc::SyncSender;

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
    let mut bytes = vec![0; frame_len(length)?];
    input.read_exact(&mut bytes)?;
    Ok(Some(from_bytes(&bytes)?))
}

/// Writes one frame.
pub fn write_frame<T: Encode<()>>(output: &mut impl Write, value: &T) -> Result<(), ControlError> {
    output.write_all(&to_frame(value)?)?;
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

/// Reads the agent's frames until the pipe ends. Ends the process by itself on `Stop` and with the agent, so that neither waits for the
/// trainer to look up from a gradient; for the same reason keys of links and names of objects are learned here.
pub(crate) fn listen(mut input: impl Read, inbox: &SyncSender<Event>, keys: &LinkKeys, tokens: &WriterTokens) {
    loop {
        let event = match read_frame(&mut input) {
            Ok(Some(ToExecutor::Order(order))) => {
                keys.learn(&order.link_keys);
                tokens.learn(&order);
                Event::Order(order)
            }
            Ok(Some(ToExecutor::Leave { within_ms })) => Event::Leave { within_ms },
            Ok(Some(ToExecutor::Trace(trace))) => Event::Trace(trace),
            Ok(Some(ToExecutor::Start(_))) => continue,
            Ok(Some(ToExecutor::Stop)) => {
                tracing::info!("stopped by the agent");
                std::process::exit(0);
            }
            Ok(None) => {
                tracing::warn!("the agent is gone");
                std::process::exit(1);
            }
            Err(error) => {
                tracing::error!(%error, "the agent cannot be understood");
                std::process::exit(1);
            }
        };
        if inbox.send(event).is_err() {
            return;
        }
    }
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
