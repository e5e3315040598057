//! Uploads: which of them no job names.

use crate::stories::*;
use controller_core::UnnamedUploads;
use controller_core::limits::UPLOAD_KEPT_MS;
use events_schema::command::Command;
use events_schema::job::JobSpec;
use events_schema::{Digest, TimeMs};
use serde_json::json;
use storage_keys::Upload;

#[test]
fn an_upload_is_rubbish_a_week_after_it_was_wanted_unless_a_job_names_it() {
    let mut world = local(1);
    let [code, program, tensors, nobodys] =
        ["code", "program", "tensors", "nobody's"].map(|text| Digest::of(text.as_bytes()));
    let torch = json!({"kind": "torch", "entry": "train:Job", "code": code.to_string(), "from": {"upload": tensors.to_string()}});
    let command = json!({"kind": "command", "command": ["train"], "code": program.to_string(), "elastic": "fixed"});
    let torch = json!({"name": "torch", "model": torch, "dataset": "digits", "workers": {"min": 1, "max": 1}, "batch_size": 16, "steps": 10,
        "seed": 1});
    let command = json!({"name": "gang", "model": command, "workers": {"max": 1}});
    let ids = [torch, command].map(|spec| world.submit(JobSpec::parse(&spec).unwrap()));
    let named = [Upload::Code(code), Upload::Code(program), Upload::Tensors(tensors)];
    // The same content as another thing is another object.
    let unnamed = [Upload::Code(nobodys), Upload::Tensors(nobodys), Upload::Code(tensors), Upload::Tensors(code)];
    let rubbish = |world: &crate::world::World, upload, wanted_at| {
        UnnamedUploads::of(&world.state, TimeMs(UPLOAD_KEPT_MS + 1)).has(upload, TimeMs(wanted_at))
    };
    assert!(unnamed.iter().all(|upload| rubbish(&world, upload, 1) && !rubbish(&world, upload, 2)));
    assert!(named.iter().all(|upload| !rubbish(&world, upload, 0)));
    // Who is shown an ended job's spec may submit it again.
    for job in ids {
        world.command(Command::CancelJob { job });
    }
    assert!(named.iter().all(|upload| !rubbish(&world, upload, 0)));
    calm(&world);
}
