//! `[volumes]`: which PersistentVolumes MiniClusters may have made.

use serde::{Deserialize, Serialize};

use super::{ConfigError, rejected, text};

/// `[volumes]`. Without `classes` none are made.
///
/// A PersistentVolume is of the whole cluster, and may be any directory of any node: whoever may create a MiniCluster gets
/// only what an administrator lists here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VolumesConfig {
    /// Storage classes that volumes may be of: `hostpath`, directories of nodes, and classes of CSI drivers.
    #[serde(deserialize_with = "text::list")]
    pub classes: Vec<String>,
    /// Directories of nodes; volumes of class `hostpath` may be these and what is below them.
    #[serde(deserialize_with = "text::list")]
    pub path_prefixes: Vec<String>,
    /// CSI drivers that volumes of other classes may name. Whoever may create a MiniCluster can mount what they find by a
    /// handle and attributes of the user's choice.
    #[serde(deserialize_with = "text::list")]
    pub drivers: Vec<String>,
}

impl VolumesConfig {
    /// Whether any volumes are made.
    pub fn is_on(&self) -> bool {
        !self.classes.is_empty()
    }

    /// Whether this directory of a node may be a volume. Symbolic links are the node's: nobody sees them here.
    pub fn allows_path(&self, path: &str) -> bool {
        is_plain(path) && self.path_prefixes.iter().any(|prefix| is_at_or_below(path, prefix))
    }

    pub(super) fn check(&self, watch_namespaces: &[String]) -> Result<(), Box<ConfigError>> {
        if self.is_on() && !watch_namespaces.is_empty() {
            let reason = "PersistentVolumes are of the whole cluster: an agent of some namespaces makes none (kubernetes.watch_namespaces)";
            return rejected("volumes.classes", reason);
        }
        match self.path_prefixes.iter().find(|prefix| !is_plain(prefix)) {
            Some(prefix) => rejected(
                "volumes.path_prefixes",
                format!("{prefix:?} is no absolute path without empty parts, '.' and '..'"),
            ),
            None => Ok(()),
        }
    }
}

/// An absolute path that says where it is without being resolved: no empty parts, no `.` and no `..`.
pub fn is_plain(path: &str) -> bool {
    let Some(rest) = path.strip_prefix('/') else { return false };
    let part = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains(char::is_control);
    rest.is_empty() || rest.strip_suffix('/').unwrap_or(rest).split('/').all(part)
}

/// Part by part: /database is not below /data.
fn is_at_or_below(path: &str, prefix: &str) -> bool {
    let (path, prefix) = (path.trim_end_matches('/'), prefix.trim_end_matches('/'));
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(prefixes: &[&str]) -> VolumesConfig {
        let path_prefixes = prefixes.iter().map(|&prefix| prefix.to_owned()).collect();
        VolumesConfig { classes: vec!["hostpath".to_owned()], path_prefixes, ..VolumesConfig::default() }
    }

    #[test]
    fn only_what_is_below_a_prefix_is_allowed() {
        let data = of(&["/data", "/srv/flux/"]);
        for path in ["/data", "/data/", "/data/a", "/data/a/b.c", "/data/..a", "/srv/flux", "/srv/flux/a/"] {
            assert!(data.allows_path(path), "{path}");
        }
        for path in [
            "",
            "/",
            "data",
            "data/a",
            "/database",
            "/data2/a",
            "/dat",
            "/data/..",
            "/data/../etc",
            "/data/a/../../etc",
            "/data//a",
            "//data",
            "/data/./a",
            "/./data",
            "/data/a\n",
            "/data/a/..",
            "/srv",
            "/srv/fluxion",
            "/etc",
            "/data/a//",
            "../data",
            "/data\0/a",
            "/DATA",
        ] {
            assert!(!data.allows_path(path), "{path:?}");
        }
        assert!(of(&["/"]).allows_path("/anything/at/all"));
        assert!(!of(&["/"]).allows_path("/any/../thing"));
        assert!(!of(&[]).allows_path("/data"));
    }

    #[test]
    fn what_cannot_be_meant_is_rejected() {
        assert!(of(&["/data"]).check(&[]).is_ok());
        for prefix in ["", "data", "/data/..", "//data", "/a//b"] {
            assert!(of(&[prefix]).check(&[]).unwrap_err().to_string().contains("volumes.path_prefixes"), "{prefix}");
        }
        let error = of(&["/data"]).check(&["research".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("an agent of some namespaces makes none"), "{error}");
        assert!(VolumesConfig::default().check(&["research".to_owned()]).is_ok());
    }
}
