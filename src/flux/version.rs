//! Which Flux an image brings. Brokers join one instance only if `major.minor` is the same (flux-core
//! `src/modules/overlay/overlay.c`).

use std::fmt;
use std::str::FromStr;

/// `major.minor` of flux-core.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FluxVersion {
    /// Before the dot.
    pub major: u32,
    /// After it.
    pub minor: u32,
}

/// A text that is no version of Flux.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no version of Flux: write it like 0.68")]
pub struct FluxVersionError(String);

impl FromStr for FluxVersion {
    type Err = FluxVersionError;

    /// Reads `0.68`, `v0.68` and `0.68.1`.
    fn from_str(text: &str) -> Result<Self, FluxVersionError> {
        let error = || FluxVersionError(text.to_owned());
        let mut parts = text.strip_prefix('v').unwrap_or(text).split('.');
        let number = |part: Option<&str>| {
            part.filter(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
                .and_then(|part| part.parse::<u32>().ok())
                .ok_or_else(error)
        };
        let version = Self { major: number(parts.next())?, minor: number(parts.next())? };
        match (parts.next(), parts.next()) {
            (None, _) => Ok(version),
            (Some(patch), None) => number(Some(patch)).map(|_| version),
            _ => Err(error()),
        }
    }
}

impl FluxVersion {
    /// What the tag of an image says: one of its parts between dashes is a version (`flux-0.68.0-noble`). Tags such as
    /// `latest`, `tag-noble` or `22.04` of a distribution say nothing: only a version that stands behind `flux-`, has three
    /// numbers, or is the whole tag and below 1.0 counts.
    pub fn of_image(image: &str) -> Option<Self> {
        let tag = tag(image)?;
        let mut before = "";
        for part in tag.split(['-', '_']) {
            let version = part.parse::<Self>().ok();
            let numbers = part.split('.').count();
            let meant = |version: &Self| {
                before.eq_ignore_ascii_case("flux") || numbers == 3 || (part == tag && version.major == 0)
            };
            if let Some(version) = version.filter(meant) {
                return Some(version);
            }
            before = part;
        }
        None
    }
}

/// Whether everybody who pulls an image gets the same: it is named by its digest.
pub fn is_pinned(image: &str) -> bool {
    image.contains("@sha256:")
}

fn tag(image: &str) -> Option<&str> {
    let name = image.split('@').next()?;
    // A port of the registry comes before the last slash.
    let (_, tag) = name.rsplit('/').next()?.split_once(':')?;
    Some(tag)
}

impl fmt::Display for FluxVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_shown_without_the_patch() {
        for text in ["0.68", "v0.68", "0.68.0", "v0.68.12"] {
            assert_eq!(text.parse::<FluxVersion>().unwrap().to_string(), "0.68");
        }
        for text in ["", "0", "0.", ".68", "0.68.", "0.68.1.2", "0.x", "latest", "0.+8"] {
            assert!(text.parse::<FluxVersion>().is_err(), "{text}");
        }
    }

    #[test]
    fn only_tags_that_mean_flux_tell_its_version() {
        let table = [
            ("ghcr.io/converged-computing/flux-view-ubuntu:tag-noble", None),
            ("ghcr.io/converged-computing/flux-view-ubuntu:0.68.0-noble", Some("0.68")),
            ("registry.example:5000/flux-view:flux-0.75-rocky9", Some("0.75")),
            ("registry.example:5000/flux-view", None),
            ("fluxrm/flux-core:v0.68.0@sha256:00", Some("0.68")),
            ("flux:0.68", Some("0.68")),
            ("ubuntu:24.04", None),
            ("app:noble-24.04", None),
            ("app:latest", None),
        ];
        for (image, version) in table {
            assert_eq!(FluxVersion::of_image(image).map(|found| found.to_string()).as_deref(), version, "{image}");
        }
        assert!(is_pinned("a@sha256:00") && !is_pinned("a:1"));
    }
}
