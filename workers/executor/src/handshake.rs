//! How two executors come to trust a connection: each proves that it knows the key of the link between them, for this very connection,
//! without sending it. Next: `keys.rs`.
//!
//! Dialer → `Hello` (job, who, whom, numeric class, a random number); acceptor → `Challenge` (its own random number and its proof);
//! dialer → `Answer` (its proof); acceptor → one byte, once it has the link at hand. A proof is a keyed BLAKE3 over both random
//! numbers and everything of the hello, and a word for the side, so that none can be reflected or used again.

use crate::keys::LinkKeys;
use events_schema::batch::{DecodeError, from_bytes, to_bytes};
use events_schema::frame::{FrameTooLong, Frames};
use events_schema::{Digest, JobId};
use minicbor::{Decode, Encode};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use workers_session::Peer;

/// Version of everything executors say to each other. 1 had one key for all links of a job; in 2 the pieces of a sum came in order; in 3 they were
/// always copied; in 4 each member sent its own sums to every owner, wherever that was; in 5 nobody showed files before lending of them; in 6
/// each member hashed the whole replica for every checkpoint.
const VERSION: u16 = 7;
/// How long an acceptor waits to be told of who dials: its order was sent when the dialer's was. Within a handshake there is time left.
const KEY_WAIT: Duration = Duration::from_secs(3);
/// What is said before there is trust: a job id and a few digests.
const FRAMES: Frames = Frames::up_to(1024);
/// The acceptor's last word.
const ACCEPTED: u8 = 0xEB;

/// Who this executor is, to its peers.
#[derive(Clone)]
pub struct Identity {
    /// The job.
    pub job: JobId,
    /// This executor.
    pub me: Peer,
    /// Its numeric class.
    pub class: Digest,
    /// The secrets it shares with each of them.
    pub keys: Arc<LinkKeys>,
}

/// Why a connection is not trusted. All: drop it; nothing was revealed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The connection broke or was too slow.
    #[error("the connection to a peer failed")]
    Connection(#[from] io::Error),
    /// Longer than any handshake.
    #[error(transparent)]
    TooLong(#[from] FrameTooLong),
    /// Not a handshake of this build.
    #[error("handshake cannot be read")]
    Decode(#[from] DecodeError),
    /// Another build, job or executor.
    #[error("the peer wants {0}")]
    Stranger(String),
    /// Another numeric class: together they would train another model.
    #[error("peer is of numeric class {theirs}, this executor of {ours}")]
    Class {
        /// Of the peer.
        theirs: Digest,
        /// Of this executor.
        ours: Digest,
    },
    /// The peer does not know the key of the link.
    #[error("peer does not prove that it is the executor that it says it is")]
    Proof,
    /// No order said that this executor is to be linked to that one.
    #[error("no order names executor {0} as a peer of this one")]
    Unexpected(Peer),
    /// The operating system has no random numbers to give.
    #[error("no random number: {0}")]
    RandomKey(getrandom::Error),
}

#[derive(Debug, Clone, Encode, Decode)]
struct Hello {
    #[n(0)]
    version: u16,
    #[n(1)]
    job: JobId,
    #[n(2)]
    from: Peer,
    #[n(3)]
    to: Peer,
    #[n(4)]
    class: Digest,
    #[cbor(n(5), with = "minicbor::bytes")]
    nonce: [u8; 32],
}

#[derive(Debug, Clone, Encode, Decode)]
struct Challenge {
    #[cbor(n(0), with = "minicbor::bytes")]
    nonce: [u8; 32],
    #[cbor(n(1), with = "minicbor::bytes")]
    proof: [u8; 32],
}

#[derive(Debug, Clone, Encode, Decode)]
struct Answer {
    #[cbor(n(0), with = "minicbor::bytes")]
    proof: [u8; 32],
}

/// A connection whose reads share one deadline: a peer that sends a byte now and then gains nothing.
pub struct Timed<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl<'a> Timed<'a> {
    /// From now on, for this long.
    pub fn new(stream: &'a TcpStream, within: Duration) -> Self {
        Self { stream, until: Instant::now() + within }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(buffer)
    }
}

impl Write for Timed<'_> {
    // A handshake is smaller than any send buffer, so writes do not wait.
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.write(buffer)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// The dialing side, up to the acceptor's last word: the acceptor has proved itself. Call [`wait_accepted`] next.
pub fn dial(identity: &Identity, to: Peer, stream: &mut (impl Read + Write)) -> Result<(), HandshakeError> {
    let key = identity.keys.get(to).ok_or(HandshakeError::Unexpected(to))?;
    let hello = Hello {
        version: VERSION,
        job: identity.job.clone(),
        from: identity.me,
        to,
        class: identity.class,
        nonce: nonce()?,
    };
    put(stream, &hello)?;
    let challenge: Challenge = get(stream)?;
    check(&key, "acceptor", &hello, &challenge.nonce, &challenge.proof)?;
    put(stream, &Answer { proof: *proof(&key, "dialer", &hello, &challenge.nonce).as_bytes() })
}

/// The dialing side, at last. When it returns, the acceptor has the link.
pub fn wait_accepted(stream: &mut impl Read) -> Result<(), HandshakeError> {
    let mut last = [0];
    stream.read_exact(&mut last)?;
    if last[0] == ACCEPTED { Ok(()) } else { Err(HandshakeError::Proof) }
}

/// The accepting side, up to its last word. Gives who dialed; call [`accepted`] once the link is at hand.
pub fn accept(identity: &Identity, stream: &mut (impl Read + Write)) -> Result<Peer, HandshakeError> {
    let hello: Hello = get(stream)?;
    if hello.version != VERSION || hello.job != identity.job || hello.to != identity.me || hello.from == identity.me {
        return Err(HandshakeError::Stranger(format!("{} of {} in version {}", hello.to, hello.job, hello.version)));
    }
    if hello.class != identity.class {
        return Err(HandshakeError::Class { theirs: hello.class, ours: identity.class });
    }
    let key = identity.keys.wait_for(hello.from, KEY_WAIT).ok_or(HandshakeError::Unexpected(hello.from))?;
    let nonce = nonce()?;
    put(stream, &Challenge { nonce, proof: *proof(&key, "acceptor", &hello, &nonce).as_bytes() })?;
    let answer: Answer = get(stream)?;
    check(&key, "dialer", &hello, &nonce, &answer.proof)?;
    Ok(hello.from)
}

/// The acceptor's last word.
pub fn accepted(stream: &mut impl Write) -> io::Result<()> {
    stream.write_all(&[ACCEPTED])
}

fn nonce() -> Result<[u8; 32], HandshakeError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(HandshakeError::RandomKey)?;
    Ok(bytes)
}

fn proof(key: &[u8; 32], side: &str, hello: &Hello, acceptor_nonce: &[u8; 32]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(side.as_bytes()).update(acceptor_nonce).update(&to_bytes(hello));
    hasher.finalize()
}

fn check(
    key: &[u8; 32],
    side: &str,
    hello: &Hello,
    acceptor_nonce: &[u8; 32],
    given: &[u8; 32],
) -> Result<(), HandshakeError> {
    // Comparison of hashes takes the same time whatever differs.
    if proof(key, side, hello, acceptor_nonce) == blake3::Hash::from_bytes(*given) {
        Ok(())
    } else {
        Err(HandshakeError::Proof)
    }
}

fn put<T: Encode<()>>(stream: &mut impl Write, value: &T) -> Result<(), HandshakeError> {
    Ok(stream.write_all(&FRAMES.cut(value)?)?)
}

fn get<T: for<'b> Decode<'b, ()>>(stream: &mut impl Read) -> Result<T, HandshakeError> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut bytes = vec![0; FRAMES.length(length)?];
    stream.read_exact(&mut bytes)?;
    Ok(from_bytes(&bytes)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::keys::tests::pair;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    /// With keys for the links to the executors 1 to 4, as the controller would derive them from a secret.
    fn identity(me: u32, secret: u8, class: &[u8]) -> Identity {
        let keys = (1..5).filter(|peer| *peer != me).map(|peer| pair(secret, me, peer)).collect::<Vec<_>>();
        let keys = Arc::new(LinkKeys::of(&keys));
        Identity { job: JobId::parse("job-a").unwrap(), me: Peer(me), class: Digest::of(class), keys }
    }

    fn meet(
        dialer: &Identity,
        to: u32,
        acceptor: Identity,
    ) -> (Result<(), HandshakeError>, Result<Peer, HandshakeError>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepting = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let peer = accept(&acceptor, &mut stream)?;
            accepted(&mut stream)?;
            Ok(peer)
        });
        let dialed = dial(dialer, Peer(to), &mut stream).and_then(|()| wait_accepted(&mut stream));
        drop(stream);
        (dialed, accepting.join().unwrap())
    }

    #[test]
    fn members_of_one_job_meet() {
        let (dialed, accepted) = meet(&identity(4, 1, b"x"), 2, identity(2, 1, b"x"));
        assert!(dialed.is_ok());
        assert_eq!(accepted.unwrap(), Peer(4));
    }

    #[test]
    fn strangers_are_refused_for_what_they_are() {
        let meets = |dialer: Identity, to| meet(&dialer, to, identity(2, 1, b"x")).1;
        assert!(meet(&identity(4, 9, b"x"), 2, identity(2, 1, b"x")).0.is_err(), "the dialer sees it first");
        assert!(matches!(meets(identity(4, 1, b"x"), 3), Err(HandshakeError::Stranger(_))));
        assert!(matches!(meets(identity(4, 1, b"y"), 2), Err(HandshakeError::Class { .. })));
        let other_job = Identity { job: JobId::parse("job-b").unwrap(), ..identity(4, 1, b"x") };
        assert!(matches!(meets(other_job, 2), Err(HandshakeError::Stranger(_))));
        let (dialed, _) = meet(&identity(4, 1, b"x"), 9, identity(2, 1, b"x"));
        assert!(matches!(dialed, Err(HandshakeError::Unexpected(Peer(9)))), "nobody told it to");
    }

    /// One key for the whole job let whoever had it speak as any executor.
    #[test]
    fn a_member_cannot_speak_for_another() {
        let three = identity(3, 1, b"x");
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let accepting = std::thread::spawn(move || accept(&identity(2, 1, b"x"), &mut far));
        let (job, class) = (three.job.clone(), three.class);
        let hello = Hello { version: VERSION, job, from: Peer(4), to: Peer(2), class, nonce: [3; 32] };
        put(&mut near, &hello).unwrap();
        let challenge: Challenge = get(&mut near).unwrap();
        let own = three.keys.get(Peer(2)).unwrap();
        put(&mut near, &Answer { proof: *proof(&own, "dialer", &hello, &challenge.nonce).as_bytes() }).unwrap();
        assert!(matches!(accepting.join().unwrap(), Err(HandshakeError::Proof)));
        let pretender = Identity { me: Peer(2), ..three };
        let (dialed, accepted) = meet(&identity(4, 1, b"x"), 2, pretender);
        assert!(matches!(dialed, Err(HandshakeError::Proof)) && accepted.is_err());
    }

    #[test]
    fn a_stranger_makes_nobody_hold_more_than_a_handshake() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        near.write_all(&1025_u32.to_le_bytes()).unwrap();
        let refused = accept(&identity(2, 1, b"x"), &mut far).unwrap_err();
        assert!(matches!(refused, HandshakeError::TooLong(_)), "{refused}");
    }

    #[test]
    fn a_deadline_holds_for_all_reads_together() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        near.write_all(&[1, 0, 0, 0, 9]).unwrap();
        let mut byte = [0];
        Timed::new(&far, Duration::from_secs(60)).read_exact(&mut byte).unwrap();
        // The next byte is there, but the time is over.
        let late = accept(&identity(2, 1, b"x"), &mut Timed::new(&far, Duration::ZERO));
        assert!(matches!(late, Err(HandshakeError::Connection(e)) if e.kind() == io::ErrorKind::TimedOut));
    }

    #[test]
    fn a_proof_of_one_side_does_not_serve_the_other() {
        let hello = Hello {
            version: VERSION,
            job: JobId::parse("job-a").unwrap(),
            from: Peer(1),
            to: Peer(0),
            class: Digest::of(b"x"),
            nonce: [3; 32],
        };
        let acceptor = proof(&[1; 32], "acceptor", &hello, &[4; 32]);
        assert!(check(&[1; 32], "dialer", &hello, &[4; 32], acceptor.as_bytes()).is_err());
        assert!(check(&[1; 32], "acceptor", &hello, &[5; 32], acceptor.as_bytes()).is_err());
    }
}
