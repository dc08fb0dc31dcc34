//! The boot files of one incarnation: what its brokers read when they start, frozen with the Job.
//!
//! They travel in an annotation of the Job, so that they are frozen by the same request that creates it, and live as
//! long as it. A ConfigMap that is lost or changed is restored from there, byte for byte.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use data_encoding::HEXLOWER;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tributary_api::labels;

use super::problem::{Problem, reason};
use super::scripts::QUORUM_KEY;

/// Counts changes to what this room renders, for the same spec: it tells a newer agent from a changed spec.
pub const RENDER_REVISION: u32 = 8;

/// Most bytes of the packed text: Kubernetes limits all annotations of an object together to 256 KiB.
pub(crate) const MAX_ENCODED: usize = 200 * 1024;

/// More than what gzip and base64 add to so short a text, whatever it is.
const PACKING_OVERHEAD: usize = 1024;

/// Most bytes a ConfigMap's data may have (1 MiB), with room for its metadata.
const MAX_FILES: usize = 1_000_000;

/// Most bytes that are unpacked: no more than a ConfigMap and a spec can hold.
const MAX_DECODED: u64 = 4 * 1024 * 1024;

/// Everything that an incarnation boots with.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Boot {
    /// [`RENDER_REVISION`] of the agent that rendered it.
    pub revision: u32,
    /// Data of the ConfigMap: scripts, hostlist, R, broker.toml.
    pub files: BTreeMap<String, String>,
    /// Canonical text of the rank map (`rank-map/1`).
    pub rank_map: String,
    /// Digest of the Job's spec, but for what changes while it runs: its size and whether it is suspended.
    pub template: String,
    /// The spec it was rendered from, without secrets: what [`super::differences`] compares a newer spec with.
    pub spec: Value,
}

/// An annotation that is no packed [`Boot`].
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// Not base64.
    #[error("failed to decode the boot annotation from base64")]
    Base64(#[from] base64::DecodeError),
    /// Not gzip, or more than a Job could ever boot with.
    #[error("failed to unpack the boot annotation")]
    Gzip(#[from] std::io::Error),
    /// Not the JSON of a [`Boot`].
    #[error("failed to parse the boot annotation")]
    Json(#[from] serde_json::Error),
    /// What it was rendered from is no spec.
    #[error("the spec in the boot annotation is no object")]
    Spec,
    /// Somebody has edited one of the two.
    #[error("the boot annotation is not the one of which {} is the digest", labels::BOOT_DIGEST)]
    Digest,
}

impl Boot {
    /// SHA-256 of the canonical JSON, as `sha256:` and hexadecimal digits.
    pub fn digest(&self) -> String {
        digest_of(self.canonical().as_bytes())
    }

    /// The text of the Job's annotation `tributary.dev/boot`: base64 of gzip of the canonical JSON.
    pub fn encode(&self) -> String {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        gzip.write_all(self.canonical().as_bytes()).expect("writing to memory does not fail");
        STANDARD.encode(gzip.finish().expect("writing to memory does not fail"))
    }

    /// Reads what [`Self::encode`] wrote, in this agent or in a newer one before a rollback: what that one added is left out.
    ///
    /// # Errors
    /// See [`BootError`]. The annotation is what the brokers run with: if it cannot be read, leave everything alone.
    pub fn decode(text: &str) -> Result<Self, BootError> {
        Self::parse(&unpack(text)?)
    }

    /// What a Job with these annotations was frozen with; `None` if they do not say. Anybody who may edit a Job may edit them.
    ///
    /// # Errors
    /// See [`BootError`].
    pub fn frozen(annotations: &BTreeMap<String, String>) -> Result<Option<Self>, BootError> {
        let Some(text) = annotations.get(labels::BOOT) else { return Ok(None) };
        let json = unpack(text)?;
        let boot = Self::parse(&json)?;
        // Of the text: a newer agent's has fields that are not read here.
        let is_whole = annotations.get(labels::BOOT_DIGEST) == Some(&digest_of(json.as_bytes()));
        if is_whole { Ok(Some(boot)) } else { Err(BootError::Digest) }
    }

    fn parse(json: &str) -> Result<Self, BootError> {
        let boot: Self = serde_json::from_str(json)?;
        if boot.spec.is_object() { Ok(boot) } else { Err(BootError::Spec) }
    }

    /// Whether it fits into the objects that carry it, with so much canonical JSON.
    pub(super) fn check_size(&self, canonical: usize) -> Result<(), Problem> {
        let files: usize = self.files.iter().map(|(key, text)| key.len() + text.len()).sum();
        // Text that cannot be packed grows by less than this. So what is small is not packed to be measured.
        let at_most = canonical.div_ceil(3) * 4 + PACKING_OVERHEAD;
        let encoded = if at_most <= MAX_ENCODED { at_most } else { self.encode().len() };
        if files <= MAX_FILES && encoded <= MAX_ENCODED {
            return Ok(());
        }
        let (largest, bytes) = self.largest();
        let message = format!(
            "scripts and configuration take {files} bytes, and {encoded} packed together with the spec; {MAX_FILES} and \
             {MAX_ENCODED} are possible. The largest part is {largest} ({bytes} bytes): put long texts into the image, or \
             into a ConfigMap or Secret of your own that the container mounts"
        );
        Err(Problem::new("spec.containers", reason::TOO_LARGE, message))
    }

    /// What takes the most of it: a file, or the environment of a container.
    fn largest(&self) -> (String, usize) {
        let files = self.files.iter().map(|(key, text)| (format!("the file {key}"), text.len()));
        let containers = self.spec["containers"].as_array().into_iter().flatten().enumerate();
        let environments = containers.map(|(index, container)| {
            let written = &container["environment"];
            let bytes = if written.is_null() { 0 } else { written.to_string().len() };
            (format!("spec.containers[{index}].environment"), bytes)
        });
        files.chain(environments).max_by_key(|(_, bytes)| *bytes).unwrap_or_default()
    }

    /// JSON of one spelling: struct fields in their order, maps by key.
    pub(super) fn canonical(&self) -> String {
        serde_json::to_string(self).expect("strings, numbers and string keys have a JSON form")
    }
}

fn unpack(text: &str) -> Result<String, BootError> {
    let packed = STANDARD.decode(text)?;
    let mut json = String::new();
    GzDecoder::new(packed.as_slice()).take(MAX_DECODED).read_to_string(&mut json)?;
    Ok(json)
}

/// Digest of a ConfigMap's data, as the Job's annotation `tributary.dev/files-digest` holds it of the frozen files. It tells
/// whether [`QUORUM_KEY`] is there, but not what it says: that may change.
pub fn files_digest(files: &BTreeMap<String, String>) -> String {
    let mut files = files.clone();
    files.entry(QUORUM_KEY.to_owned()).and_modify(String::clear);
    digest_of(serde_json::to_string(&files).expect("string keys have a JSON form").as_bytes())
}

/// `sha256:` and the hexadecimal digits of the hash of `bytes`.
pub(super) fn digest_of(bytes: &[u8]) -> String {
    format!("sha256:{}", HEXLOWER.encode(&Sha256::digest(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot() -> Boot {
        Boot {
            revision: RENDER_REVISION,
            files: BTreeMap::from([("wait-0".to_owned(), "#!/bin/bash\necho \"$HOME\"\n".to_owned())]),
            rank_map: "rank-map/1\nslot lake max-size=2 cores=1 gpus=0\n".to_owned(),
            template: digest_of(b""),
            spec: serde_json::json!({"size": 2, "containers": [{"image": "ubuntu"}]}),
        }
    }

    #[test]
    fn the_annotation_brings_every_byte_back() {
        let boot = boot();
        let back = Boot::decode(&boot.encode()).unwrap();
        assert_eq!(back, boot);
        assert_eq!(back.digest(), boot.digest());
    }

    #[test]
    fn an_agent_that_is_rolled_back_reads_what_the_newer_one_froze() {
        let mut newer = serde_json::to_value(boot()).unwrap();
        newer["revision"] = (RENDER_REVISION + 1).into();
        newer["added"] = serde_json::json!({"by": "a newer agent"});
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(newer.to_string().as_bytes()).unwrap();
        let packed = STANDARD.encode(gzip.finish().unwrap());
        let digest = digest_of(newer.to_string().as_bytes());
        let annotations = [(labels::BOOT.to_owned(), packed), (labels::BOOT_DIGEST.to_owned(), digest)].into();
        let back = Boot::frozen(&annotations).unwrap();
        assert_eq!(back, Some(Boot { revision: RENDER_REVISION + 1, ..boot() }));
    }

    #[test]
    fn packing_is_deterministic_and_the_digest_sees_every_byte() {
        assert_eq!(boot().encode(), boot().encode());
        let mut other = boot();
        other.files.get_mut("wait-0").unwrap().push(' ');
        assert_ne!(other.digest(), boot().digest());
        assert_eq!(digest_of(b"abc"), "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn the_digest_of_files_tells_everything_but_the_quorum() {
        let of = |files: &[(&str, &str)]| {
            files_digest(&files.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect())
        };
        assert_eq!(of(&[("a", "b"), (QUORUM_KEY, "4\n")]), of(&[("a", "b"), (QUORUM_KEY, "2\n")]));
        assert_ne!(of(&[("a", "b"), (QUORUM_KEY, "4\n")]), of(&[("a", "c"), (QUORUM_KEY, "4\n")]));
        assert_ne!(of(&[("a", "b"), (QUORUM_KEY, "4\n")]), of(&[("a", "b")]));
    }

    #[test]
    fn what_is_no_boot_is_refused() {
        assert!(matches!(Boot::decode("%"), Err(BootError::Base64(_))));
        assert!(matches!(Boot::decode("AAAA"), Err(BootError::Gzip(_))));
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(b"{}").unwrap();
        assert!(matches!(Boot::decode(&STANDARD.encode(gzip.finish().unwrap())), Err(BootError::Json(_))));
    }

    #[test]
    fn what_somebody_edited_is_refused() {
        let of = |boot: &Boot, digest: String| {
            Boot::frozen(&[(labels::BOOT.to_owned(), boot.encode()), (labels::BOOT_DIGEST.to_owned(), digest)].into())
        };
        assert_eq!(of(&boot(), boot().digest()).unwrap(), Some(boot()));
        assert!(matches!(of(&boot(), "x".to_owned()), Err(BootError::Digest)));
        for spec in [serde_json::json!(1), serde_json::json!([]), Value::Null] {
            let edited = Boot { spec, ..boot() };
            assert!(matches!(of(&edited, edited.digest()), Err(BootError::Spec)), "{edited:?}");
        }
        let lacks = [(labels::BOOT.to_owned(), boot().encode())].into();
        assert!(matches!(Boot::frozen(&lacks), Err(BootError::Digest)));
        assert!(matches!(Boot::frozen(&BTreeMap::new()), Ok(None)));
    }

    #[test]
    fn a_bomb_is_not_unpacked() {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&vec![b' '; 2 * usize::try_from(MAX_DECODED).unwrap()]).unwrap();
        assert!(matches!(Boot::decode(&STANDARD.encode(gzip.finish().unwrap())), Err(BootError::Json(_))));
    }

    #[test]
    fn what_counts_as_small_fits_even_if_it_cannot_be_packed() {
        let mut boot = boot();
        let mut state = 1_u64;
        let noise = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from_u32(u32::try_from(state >> 44).unwrap()).unwrap_or(' ')
        });
        let noise: String = noise.take(40_000).collect();
        for length in [0, 1_000, 20_000, 40_000] {
            boot.files.insert("noise".to_owned(), noise.chars().take(length).collect());
            let text = boot.canonical().len();
            assert!(boot.encode().len() <= text.div_ceil(3) * 4 + PACKING_OVERHEAD, "{text} bytes");
        }
    }

    #[test]
    fn scripts_that_no_object_can_carry_are_refused() {
        let mut boot = boot();
        boot.check_size(boot.canonical().len()).unwrap();
        boot.files.insert("script-0".to_owned(), "x".repeat(MAX_FILES));
        let problem = boot.check_size(boot.canonical().len()).unwrap_err();
        assert_eq!(problem.reason, reason::TOO_LARGE);
        assert!(
            problem.message.contains("The largest part is the file script-0 (1000000 bytes)"),
            "{}",
            problem.message
        );
        boot.spec = serde_json::json!({"containers": [{}, {"environment": {"TABLE": "x".repeat(MAX_FILES)}}]});
        let problem = boot.check_size(boot.canonical().len()).unwrap_err();
        assert!(problem.message.contains("is spec.containers[1].environment ("), "{}", problem.message);
    }
}
