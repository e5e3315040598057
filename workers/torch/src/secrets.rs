//! Values that a job names and its operator has: read where the job runs, set in the environment of its Python, and nowhere else.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Far more than a token or a key has.
const BYTES_MAX: u64 = 65_536;

/// Why a secret cannot be given. All: refuse, its operator has to act. No text holds any of a value.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum SecretError {
    /// This server has none at all.
    #[error(
        "the job wants the secret `{name}` as {variable}, and this server has no secrets; its operator names their folder with --secrets DIR"
    )]
    NoFolder { name: String, variable: String },
    /// This one is not there.
    #[error(
        "the secret `{name}`, wanted as {variable}, is not on this server; its operator puts it into a file of that name in the folder of --secrets"
    )]
    Missing { name: String, variable: String },
    /// It cannot be read, or is no text.
    #[error("the secret `{name}`, wanted as {variable}, cannot be read on this server")]
    Unreadable {
        name: String,
        variable: String,
        #[source]
        source: io::Error,
    },
    /// Its file is open to others.
    #[error(
        "the secret `{name}`, wanted as {variable}, is in a file that others may read (mode {mode:o}) on this server; its operator closes it with chmod 600"
    )]
    Open { name: String, variable: String, mode: u32 },
}

/// Reads what a job wants: by variable, from files of a folder.
pub(crate) fn read(
    folder: Option<&str>,
    wanted: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, SecretError> {
    let each = |(variable, name): (&String, &String)| {
        let (variable, name) = (variable.clone(), name.clone());
        let Some(folder) = folder else { return Err(SecretError::NoFolder { name, variable }) };
        match read_one(&Path::new(folder).join(&name)) {
            Ok(Ok(value)) => Ok((variable, value)),
            Ok(Err(mode)) => Err(SecretError::Open { name, variable, mode }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(SecretError::Missing { name, variable }),
            Err(source) => Err(SecretError::Unreadable { name, variable, source }),
        }
    };
    wanted.iter().map(each).collect()
}

/// The text without the end of its line, or the mode of a file that is open to others.
fn read_one(path: &Path) -> io::Result<Result<String, u32>> {
    let file = File::open(path)?;
    let mode = file.metadata()?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Ok(Err(mode));
    }
    let mut text = String::new();
    let read = file.take(BYTES_MAX + 1).read_to_string(&mut text);
    let value = text.trim_end_matches(['\n', '\r']);
    if read? as u64 > BYTES_MAX || value.is_empty() || value.contains('\0') {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("its file has to hold a text of up to {BYTES_MAX} bytes"),
        ));
    }
    Ok(Ok(value.to_owned()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_secret_is_read_from_its_private_file_and_each_fault_is_named_without_its_value() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hf");
        fs::write(&path, "hf_value\n").unwrap();
        fs::write(folder.path().join("empty"), "\n").unwrap();
        for (name, mode) in [("hf", 0o600), ("empty", 0o400)] {
            fs::set_permissions(folder.path().join(name), Permissions::from_mode(mode)).unwrap();
        }
        let of = |name: &str| BTreeMap::from([("TOKEN".to_owned(), name.to_owned())]);
        let in_folder = |name: &str| read(folder.path().to_str(), &of(name));
        assert_eq!(in_folder("hf").unwrap(), of("hf_value"));
        for (refused, said) in [
            (read(None, &of("hf")), "--secrets DIR"),
            (in_folder("other"), "`other`, wanted as TOKEN, is not on this server"),
            (in_folder("empty"), "`empty`"),
        ] {
            let text = refused.unwrap_err().to_string();
            assert!(text.contains(said), "{text}");
        }
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let text = in_folder("hf").unwrap_err().to_string();
        assert!(text.contains("mode 640") && text.contains("chmod 600") && !text.contains("hf_value"), "{text}");
    }
}
