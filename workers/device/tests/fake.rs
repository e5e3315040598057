//! The driver as the agent asks it, against a library that is built here and does what a file says: memory that comes back late or never, a
//! device that answers nothing, one that falls off. No real driver is asked.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::process::Command;
use workers_device::{
    ChooseError, Device, Driver, DriverError, Ground, Nvml, Reading, SETTLE_TIMEOUT_MS, Settling, Uuid, Verdict, choose,
};

const ONE: &str = "GPU-00000000-0000-0000-0000-000000000001";
const TWO: &str = "GPU-00000000-0000-0000-0000-000000000002";

/// A library of its own, and what it says.
struct Fake {
    folder: tempfile::TempDir,
    driver: Nvml,
}

impl Fake {
    fn new(lines: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (source, library) =
            (PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fake_nvml.c"), folder.path().join("fake.so"));
        let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).arg("-ldl").status();
        assert!(built.expect("a C compiler `cc` is needed to build the fake driver").success());
        std::fs::write(folder.path().join("devices"), lines).unwrap();
        let driver = Nvml::load(Some(library.as_os_str())).unwrap();
        Self { folder, driver }
    }

    fn says(&self, lines: &str) {
        std::fs::write(self.folder.path().join("devices"), lines).unwrap();
    }
}

fn uuid(text: &str) -> Uuid {
    text.parse().unwrap()
}

#[test]
fn devices_are_listed_and_chosen_by_name_or_number() {
    let fake = Fake::new(&format!("{ONE} 81920 3 well\n{TWO} 81920 5 well\n"));
    let chosen = |wanted: &str| choose(&wanted.parse().unwrap(), &fake.driver);
    let uuids = |wanted: &str| chosen(wanted).unwrap().iter().map(|device| device.uuid.to_string()).collect::<Vec<_>>();
    assert_eq!(fake.driver.version().unwrap(), "580.01");
    let (parts, node) = (None, None);
    let (total_bytes, used_bytes) = (81_920 << 20, 3 << 20);
    let first = Device { uuid: uuid(ONE), name: "Fake".to_owned(), total_bytes, used_bytes, parts, node };
    assert_eq!(chosen("auto").unwrap()[0], first);
    assert_eq!(uuids("auto"), [ONE, TWO]);
    assert_eq!(uuids(TWO), [TWO]);
    assert_eq!(uuids("1,0,0"), [TWO, ONE, ONE], "two slots share one");
    assert_eq!(uuids("none"), [""; 0]);
    for other in ["GPU-00000000-0000-0000-0000-000000000003", "2"] {
        let error = chosen(other).unwrap_err().to_string();
        assert!(error.contains(other) && error.contains(ONE) && error.contains(TWO), "{error}");
    }
    fake.says("");
    assert!(matches!(chosen("auto"), Err(ChooseError::Nothing)));
}

#[test]
fn a_device_that_is_cut_into_parts_is_no_slot_and_neither_is_a_part() {
    let fake = Fake::new(&format!("{ONE} 81920 3 cut\n{TWO} 81920 5 well\n"));
    let chosen = |wanted: &str| choose(&wanted.parse().unwrap(), &fake.driver);
    let parts = ["MIG-00000000-0000-0000-0000-000000000011", "MIG-00000000-0000-0000-0000-000000000012"];
    for wanted in ["auto", "0", ONE, parts[1]] {
        let error = chosen(wanted).unwrap_err().to_string();
        for said in [ONE, parts[0], parts[1], "-mig 0", &format!("--devices {TWO}")] {
            assert!(error.contains(said), "{wanted}: {error}");
        }
    }
    assert_eq!(chosen("1").unwrap()[0].uuid, uuid(TWO));
}

#[test]
fn the_file_of_a_device_is_known_where_the_driver_says_so() {
    let fake = Fake::new(&format!("{ONE} 81920 3 unreachable\n{TWO} 81920 5 well\n"));
    let listed = fake.driver.list().unwrap();
    assert_eq!(listed[0].node.as_deref(), Some("/dev/nvidia4095".as_ref()));
    assert_eq!(listed[1].node, None);
}

#[test]
fn a_context_that_does_not_go_away_keeps_its_device_until_it_does() {
    let fake = Fake::new(&format!("{ONE} 81920 500 well\n"));
    let device = uuid(ONE);
    let before_bytes = fake.driver.read(&device).unwrap().used_bytes;
    let settling = Settling::new(0, Ground { before_bytes, ..Ground::default() });
    fake.says(&format!("{ONE} 81920 40000 well\n"));
    let look = |now| settling.look(now, &fake.driver.read(&device), false);
    assert_eq!(look(1), Verdict::Wait);
    assert!(
        matches!(look(SETTLE_TIMEOUT_MS), Verdict::Held(why) if why.contains("40000 MiB") && why.contains("500 MiB"))
    );
    fake.says(&format!("{ONE} 81920 510 well\n"));
    assert_eq!(look(SETTLE_TIMEOUT_MS + 1), Verdict::Back);
}

#[test]
fn who_computes_on_a_device_is_known_where_the_driver_says_so() {
    let fake = Fake::new(&format!("{ONE} 81920 500 well 7 8\n{TWO} 81920 3 unlisted\n"));
    let read = |text| fake.driver.read(&uuid(text)).unwrap();
    let busy_percent = Some(0);
    assert_eq!(read(ONE), Reading { used_bytes: 500 << 20, busy_percent, processes: Some([7, 8].into()) });
    assert_eq!(read(TWO), Reading { used_bytes: 3 << 20, busy_percent, processes: None });
    fake.says(&format!("{ONE} 81920 3 well\n"));
    assert_eq!(read(ONE).processes, Some([].into()));
}

#[test]
fn how_much_a_device_computes_is_known_where_the_driver_says_so() {
    let fake = Fake::new(&format!("{ONE} 81920 500 busy73 7\n{TWO} 81920 3 cut\n"));
    let read = |text| fake.driver.read(&uuid(text)).unwrap().busy_percent;
    assert_eq!((read(ONE), read(TWO)), (Some(73), None));
}

#[test]
fn a_device_that_falls_off_is_lost_and_one_that_is_busy_is_asked_again() {
    let fake = Fake::new(&format!("{ONE} 81920 3 well\n{TWO} 81920 3 busy\n"));
    let of = |text| fake.driver.read(&uuid(text));
    assert!(matches!(of(TWO), Err(DriverError::Failed(_))));
    assert!(matches!(fake.driver.list(), Err(DriverError::Failed(_))), "not one less than there are");
    fake.says(&format!("{ONE} 81920 3 lost\n"));
    assert!(matches!(of(ONE), Err(DriverError::Lost(lost)) if lost == uuid(ONE)));
    assert!(matches!(of(TWO), Err(DriverError::Lost(lost)) if lost == uuid(TWO)), "it is not listed any more");
    assert!(matches!(Settling::new(0, Ground::default()).look(0, &of(ONE), false), Verdict::Lost(_)));
}

#[test]
fn without_a_driver_nothing_but_this_fails() {
    let missing = Nvml::load(Some("/nowhere/libnvidia-ml.so.1".as_ref()));
    assert!(matches!(missing, Err(DriverError::Missing(_))));
}
