//! Writes keys and certificates to a directory: keys for their owner only, and nothing overwritten unasked.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// What to do about files that exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Existing {
    /// Write nothing if one of them exists.
    Refuse,
    /// Replace them.
    Replace,
}

/// Why nothing, or not all, was written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A file is there already.
    #[error("{} exists already; nothing was written", .0.display())]
    Exists(PathBuf),
    /// The file system refused.
    #[error("failed to write {}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Writes the files into `dir`, which is made (0700) if need be. Names that end in `.key` get mode 0600, others 0644.
/// Each file is whole or absent: it is written under another name and then moved.
pub(crate) fn write(dir: &Path, files: &[(&str, &str)], existing: Existing) -> Result<(), WriteError> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io_error(dir))?;
    if existing == Existing::Refuse
        && let Some((name, _)) = files.iter().find(|(name, _)| dir.join(name).symlink_metadata().is_ok())
    {
        return Err(WriteError::Exists(dir.join(name)));
    }
    for (name, text) in files {
        let mode = if name.ends_with(".key") { 0o600 } else { 0o644 };
        write_one(&dir.join(name), &dir.join(format!(".{name}.new")), text, mode, existing)?;
    }
    Ok(())
}

fn write_one(path: &Path, draft: &Path, text: &str, mode: u32, existing: Existing) -> Result<(), WriteError> {
    match fs::remove_file(draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error(draft)(error)),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(draft).map_err(io_error(draft))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(io_error(draft))?;
    match existing {
        Existing::Replace => fs::rename(draft, path).map_err(io_error(path)),
        // A hard link, unlike a rename, fails if somebody else has made the file since we looked.
        Existing::Refuse => {
            let linked = fs::hard_link(draft, path);
            fs::remove_file(draft).map_err(io_error(draft))?;
            match linked {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(WriteError::Exists(path.to_owned())),
                linked => linked.map_err(io_error(path)),
            }
        }
    }
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> WriteError {
    let path = path.to_owned();
    move |source| WriteError::Io { path, source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn keys_are_for_their_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("a/b");
        write(&target, &[("tls.key", "k"), ("tls.crt", "c")], Existing::Refuse).unwrap();
        let mode = |name: &str| fs::metadata(target.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("tls.key"), mode("tls.crt") & 0o600), (0o600, 0o600));
        assert_eq!(fs::read_dir(&target).unwrap().count(), 2, "no draft is left behind");
    }

    #[test]
    fn what_exists_is_kept_unless_asked() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("ca.crt"), "old").unwrap();
        let files = [("ca.key", "new"), ("ca.crt", "new")];
        let refused = write(dir.path(), &files, Existing::Refuse).unwrap_err();
        assert!(matches!(refused, WriteError::Exists(path) if path.ends_with("ca.crt")));
        assert!(!dir.path().join("ca.key").exists(), "all or nothing");
        write(dir.path(), &files, Existing::Replace).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("ca.crt")).unwrap(), "new");
    }
}
