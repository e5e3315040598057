//! Every bound of the gateway that a test or an operator may want otherwise, with its reason. Passed in, never switched by a build.

use gateway_call::Waits;
use http_listener::Bounds;
use std::time::Duration;

/// The bounds of one gateway. Body sizes are constants of `body.rs`, pages of `gateway-api`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How long the acknowledgement and then the decision of a command or signal are awaited.
    pub call: Waits,
    /// How long the log may take to say where it ends, and the read model to get there, before something is called unknown.
    pub catch_up: Duration,
    /// Longest time from a request's head to its answer's head, for all but dataset registrations.
    pub request_time: Duration,
    /// The same for dataset registrations, which read the footers of up to thousands of files.
    pub registration_time: Duration,
    /// The same for uploads of tensors, which have up to 2 GiB.
    pub upload_time: Duration,
    /// Time a client has to send a request's head, against connections that only hold a place.
    pub head_time: Duration,
    /// Longest time that a client takes in no byte of an answer, event streams included.
    pub write_stall: Duration,
    /// Pause between two heartbeat comments of a silent event stream; nginx and the balancers of AWS end what is silent for a minute, unless told otherwise.
    pub heartbeat: Duration,
    /// Time between the first `/readyz` that says that the gateway stops and its stop, in which a balancer that looks every two seconds
    /// looks twice.
    pub leave_time: Duration,
    /// The same on a loopback address, where people wait for Ctrl-C, and only a proxy of the same machine looks; one that does twice a second looks twice.
    pub leave_time_loopback: Duration,
    /// Time that open requests have to end when the gateway stops.
    pub shutdown_grace: Duration,
    /// Connections at once, a file descriptor each.
    pub connections_max: usize,
    /// Requests in work at once: each holds at most one body and one answer.
    pub requests_max: usize,
    /// Open event streams at once: each holds a cursor and a batch.
    pub streams_max: usize,
    /// Requests at once that read what datasets are: a registration reads many files, and links take a metadata object of up to 256 MiB.
    pub dataset_reads_max: usize,
    /// Uploads of code at once: each holds up to 32 MiB.
    pub code_uploads_max: usize,
    /// Uploads of tensors at once: each is streamed for minutes, with a few MiB in memory.
    pub model_uploads_max: usize,
}

impl Limits {
    /// What `ebb up` runs with.
    pub const STANDARD: Self = Self {
        call: Waits::STANDARD,
        catch_up: Duration::from_secs(5),
        request_time: Duration::from_secs(30),
        registration_time: Duration::from_secs(120),
        upload_time: Duration::from_secs(600),
        head_time: Duration::from_secs(15),
        write_stall: Duration::from_secs(30),
        heartbeat: Duration::from_secs(10),
        leave_time: Duration::from_secs(5),
        leave_time_loopback: Duration::from_secs(1),
        shutdown_grace: Duration::from_secs(5),
        connections_max: 4_096,
        requests_max: 512,
        streams_max: 1_024,
        dataset_reads_max: 2,
        code_uploads_max: 4,
        model_uploads_max: 4,
    };

    /// The same for a service that may hold only so many connections: event streams, which stay, take at most half of them.
    #[must_use]
    pub fn within(self, connections_max: usize) -> Self {
        let connections_max = self.connections_max.min(connections_max);
        Self { connections_max, streams_max: self.streams_max.min(connections_max / 2), ..self }
    }

    /// What of these bounds connections.
    #[must_use]
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds {
            connections_max: self.connections_max,
            head_time: self.head_time,
            write_stall: self.write_stall,
            shutdown_grace: self.shutdown_grace,
        }
    }
}

const _: () = assert!(
    Waits::STANDARD.total_ms() < Limits::STANDARD.request_time.as_millis() as u64,
    "a call says what is known of its record before the request's own time is over"
);
