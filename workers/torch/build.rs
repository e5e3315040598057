//! Lists the files of the Python package, so that a new one cannot be forgotten.

use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

fn main() {
    let folder = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo says where the crate is")).join("python/ebb");
    println!("cargo:rerun-if-changed={}", folder.display());
    let entries = fs::read_dir(&folder).expect("the package is there").map(|entry| entry.expect("a file").path());
    let mut files: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "py")).collect();
    files.sort();
    let mut text = String::from("/// Every file of the package: name and text.\nconst FILES: &[(&str, &str)] = &[\n");
    for path in files {
        println!("cargo:rerun-if-changed={}", path.display());
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        writeln!(text, "    ({name:?}, include_str!({path:?})),").expect("writing to a string");
    }
    text.push_str("];\n");
    let out = Path::new(&env::var("OUT_DIR").expect("cargo says where to write")).join("package.rs");
    fs::write(out, text).expect("the folder for what is generated can be written");
}
