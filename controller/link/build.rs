//! Declares the one service of the stream by hand, so that no protocol compiler is needed: messages are the Rust types of
//! `events-schema`, written by `src/codec.rs`. Next file: `src/codec.rs`.

fn main() {
    let open = tonic_build::manual::Method::builder()
        .name("open")
        .route_name("Open")
        .input_type("events_schema::orders::AgentMessage")
        .output_type("events_schema::orders::ControllerMessage")
        .codec_path("crate::codec::RecordCodec")
        .client_streaming()
        .server_streaming()
        .build();
    let progress = tonic_build::manual::Method::builder()
        .name("progress")
        .route_name("Progress")
        .input_type("events_schema::orders::WatchProgress")
        .output_type("events_schema::orders::Telemetry")
        .codec_path("crate::codec::RecordCodec")
        .server_streaming()
        .build();
    let service = tonic_build::manual::Service::builder()
        .name("AgentLink")
        .package("ebb.link.v1")
        .method(open)
        .method(progress)
        .build();
    tonic_build::manual::Builder::new().compile(&[service]);
}
