//! The examples of jobs in PyTorch, `docs/examples/torch/`: each runs as it is, but for fewer steps, and gives the model that it gives
//! without any of the service. (That which is a program of its own is tried in `gang.rs`.)

use crate::schedules::schedule;
use crate::support::{System, finished, import_text, plain_digest};
use crate::torch::{python, service};
use std::path::{Path, PathBuf};

/// Rows of its own for an example, in the shape of those that it is given of a dataset: `ebb.run` has no datasets of Ebb's.
const IMAGES: &str = r#"

class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 90

    def __getitem__(self, row):
        generator = torch.Generator().manual_seed(row)
        return torch.rand(1, 8, 8, generator=generator) + 0.1 * torch.rand(1, 8, 8), row % 10


class AtHome(Job):
    def dataset(self):
        return Images()
"#;
const TOKENS: &str = r#"

class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 70

    def __getitem__(self, row):
        return torch.randint(0, 31, (17,), generator=torch.Generator().manual_seed(row))


class AtHome(Job):
    def model(self):
        self.sample = {"kind": "tokens", "length": 17, "vocabulary": 31}
        return super().model()

    def dataset(self):
        return Tokens()
"#;
/// Examples that are trained at home as well, each with rows of its own.
const AT_HOME: [(&str, &str); 3] = [("digits-cnn", IMAGES), ("resnet18", IMAGES), ("gpt", TOKENS)];
/// The Python package, as it lies here.
const PACKAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../workers/torch/python");
/// Every folder in it is an example.
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/torch");
/// Enough for schedules to move and for momentum to count.
const STEPS: u64 = 6;
/// Those that are most unlike each other: buffers and augmentation, attention, frozen weights with adapters, another framework's trainer. Each with as many steps as it
/// goes on for while it is disturbed, of which those that take longer need fewer.
const DISTURBED: [(&str, u64); 4] = [("resnet18", 30), ("gpt", 60), ("lora", 60), ("hugging-face", 60)];
/// Lines of an example's code, so that it stays one.
const LINES_MAX: usize = 60;

fn examples() -> Vec<PathBuf> {
    let mut folders: Vec<_> = std::fs::read_dir(EXAMPLES).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.retain(|folder| !folder.ends_with("gang"));
    folders.sort();
    assert!(!folders.is_empty(), "no examples in {EXAMPLES}");
    folders
}

/// A copy of an example that ends sooner; its job file.
fn shortened(example: &Path, copy: &Path, steps: u64) -> PathBuf {
    std::fs::create_dir_all(copy).unwrap();
    let code = std::fs::read_to_string(example.join("train.py")).unwrap();
    assert!(code.lines().count() < LINES_MAX, "{} has {LINES_MAX} lines or more", example.display());
    std::fs::write(copy.join("train.py"), code).unwrap();
    let job = std::fs::read_to_string(example.join("job.yaml")).unwrap();
    let steps = format!("steps: {steps}");
    let lines: Vec<&str> = job.lines().map(|line| if line.starts_with("steps:") { &steps } else { line }).collect();
    assert!(lines.contains(&steps.as_str()), "{} does not say its steps", example.display());
    let file = copy.join("job.yaml");
    std::fs::write(&file, lines.join("\n")).unwrap();
    file
}

/// A service on which one executor sends another its sums. More would only import PyTorch once more each.
async fn on_two() -> System {
    System::start_with(2, &["--python", &python()]).await
}

async fn run(system: &System, example: &Path) {
    let name = example.file_name().unwrap().to_str().unwrap();
    let file = shortened(example, &system.path(name), STEPS);
    let file = file.to_str().unwrap();
    // The same job as a document: the packed code instead of the folder.
    let document = system.ebb_json(&["submit", file, "--dry-run"]).await["spec"].clone();
    let submitted = system.ebb_json(&["submit", file, "--wait"]).await;
    assert_eq!(submitted["phase"], "finished", "{name}: {submitted}");
    let client = system.client();
    let digest = finished(&client, submitted["id"].as_str().unwrap()).await;
    let expected = plain_digest(&client, &system.service.ready().store_url, &document).await;
    assert_eq!(digest, expected, "{name}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_example_runs_as_pasted() {
    let system = on_two().await;
    import_text(&system).await;
    for example in examples() {
        run(&system, &example).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_trained_at_home_is_the_model_of_the_service() {
    let system = on_two().await;
    for (name, rows) in AT_HOME {
        let file = shortened(&Path::new(EXAMPLES).join(name), &system.path(&format!("{name}-at-home")), STEPS);
        let folder = file.parent().unwrap();
        let code = std::fs::read_to_string(folder.join("train.py")).unwrap();
        std::fs::write(folder.join("train.py"), code + rows).unwrap();
        let job = std::fs::read_to_string(&file).unwrap();
        // Theirs are the rows, so nothing is registered.
        let kept = job.lines().filter(|line| !line.starts_with("dataset:") && !line.starts_with("evaluation:"));
        let job = kept.collect::<Vec<_>>().join("\n").replace("entry: train:Job", "entry: train:AtHome");
        std::fs::write(&file, &job).unwrap();
        let submitted = system.ebb_json(&["submit", file.to_str().unwrap(), "--wait"]).await;
        assert_eq!(submitted["phase"], "finished", "{name}: {submitted}");
        let digest = finished(&system.client(), submitted["id"].as_str().unwrap()).await;

        // The job as the service shows it is all that is said at home.
        let spec = system.path(&format!("{name}.json"));
        let document = system.ebb_json(&["submit", file.to_str().unwrap(), "--dry-run"]).await["spec"].clone();
        std::fs::write(&spec, document.to_string()).unwrap();
        let run = tokio::process::Command::new(python())
            .args(["-m", "ebb.run", "train:AtHome", "--code"])
            .arg(folder)
            .arg("--spec")
            .arg(&spec)
            .env("PYTHONPATH", PACKAGE)
            .output()
            .await
            .unwrap();
        let said = String::from_utf8_lossy(&run.stdout).into_owned();
        let last = said.lines().last().unwrap_or_default();
        assert_eq!(last, format!("digest {digest}"), "{name}: {said}{}", String::from_utf8_lossy(&run.stderr));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_models_are_the_same_whatever_happens() {
    let system = service().await;
    import_text(&system).await;
    // More are run by hand: each executor imports PyTorch, some of them two frameworks more.
    let schedules = std::env::var("EBB_TORCH_SCHEDULES").ok().map_or(1, |text| text.parse().unwrap());
    let only = std::env::var("EBB_TORCH_EXAMPLE").ok();
    for (name, steps) in DISTURBED.into_iter().filter(|(name, _)| only.as_ref().is_none_or(|only| only == name)) {
        let file = shortened(&Path::new(EXAMPLES).join(name), &system.path(&format!("{name}-disturbed")), steps);
        let mut document = system.ebb_json(&["submit", file.to_str().unwrap(), "--dry-run"]).await["spec"].clone();
        document["checkpoint"] = serde_json::json!({"every_steps": steps / 6, "keep": 2});
        let expected = plain_digest(&system.client(), &system.service.ready().store_url, &document).await;
        for seed in 0..schedules {
            let begun = std::time::Instant::now();
            let (digest, story) = schedule(&system, &document, &format!("{name}-{seed}"), seed).await;
            assert_eq!(digest, expected, "{name}, seed {seed}: {story:?}");
            println!("{name}, seed {seed}, {:?}: {story:?}", begun.elapsed());
        }
    }
}
