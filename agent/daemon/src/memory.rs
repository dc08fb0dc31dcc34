//! How much of its container's memory tunnels may take.

use std::fs;
use std::path::Path;

/// Largest default without a limit.
const LARGEST: u64 = 1 << 30;

/// If even the machine does not say what it has.
const UNKNOWN: u64 = 2 << 30;

/// Bytes for all tunnels: as configured, but no more than half of the container's limit.
pub(crate) fn for_tunnels(configured_mib: Option<u32>) -> usize {
    let (limit, machine) = (limit(Path::new("/proc"), Path::new("/sys/fs/cgroup")), machine(Path::new("/proc")));
    let bytes = share(configured_mib, limit, machine);
    tracing::info!(mib = bytes >> 20, limit_mib = limit.map(|limit| limit >> 20), "memory for tunnels");
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn share(configured_mib: Option<u32>, limit: Option<u64>, machine: Option<u64>) -> u64 {
    let configured = configured_mib.map(|mib| u64::from(mib) << 20);
    // A limit beyond what there is limits nothing.
    match (limit.filter(|limit| machine.is_none_or(|machine| *limit < machine)), configured) {
        (Some(limit), Some(configured)) => configured.min(limit / 2),
        (Some(limit), None) => limit / 2,
        (None, Some(configured)) => configured,
        (None, None) => (machine.unwrap_or(UNKNOWN) / 8).min(LARGEST),
    }
}

/// The smallest memory limit of this process's cgroup and those above it; `None`: there is none. In a container, the path
/// may be that of the node, and then its own cgroup is what is mounted.
fn limit(proc: &Path, mounted: &Path) -> Option<u64> {
    let cgroups = fs::read_to_string(proc.join("self/cgroup")).ok()?;
    let limits = cgroups.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let (top, file) = match controllers {
            "" => (mounted.to_owned(), "memory.max"),
            named if named.split(',').any(|one| one == "memory") => (mounted.join("memory"), "memory.limit_in_bytes"),
            _ => return Vec::new(),
        };
        let own = Path::new(path.trim_start_matches('/'));
        let read = |path: &Path| fs::read_to_string(top.join(path).join(file)).ok()?.trim().parse::<u64>().ok();
        own.ancestors().filter_map(read).collect()
    });
    limits.min()
}

/// All memory of the machine.
fn machine(proc: &Path) -> Option<u64> {
    let all = fs::read_to_string(proc.join("meminfo")).ok()?;
    let total = all.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(total.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A path below the root of the machine, and its text.
    type File = (&'static str, &'static str);

    fn found(cgroup: &str, files: &[File]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        let files = [("proc/self/cgroup", cgroup)].into_iter().chain(files.iter().copied());
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        limit(&root.path().join("proc"), &root.path().join("cgroup"))
    }

    #[test]
    fn the_smallest_limit_above_counts() {
        let none = "9223372036854771712\n";
        let table: [(&str, &str, &[File], Option<u64>); 8] = [
            ("a container", "0::/\n", &[("cgroup/memory.max", "536870912\n")], Some(512 * MIB)),
            ("no limit", "0::/\n", &[("cgroup/memory.max", "max\n")], None),
            (
                "the pod's is smaller",
                "0::/pod/agent\n",
                &[("cgroup/pod/agent/memory.max", "max\n"), ("cgroup/pod/memory.max", "268435456\n")],
                Some(256 * MIB),
            ),
            (
                "the container's is smaller",
                "0::/pod/agent\n",
                &[("cgroup/pod/agent/memory.max", "134217728\n"), ("cgroup/pod/memory.max", "268435456\n")],
                Some(128 * MIB),
            ),
            (
                "the first version, with the path of the node",
                "5:cpu,cpuacct:/kubepods/pod/agent\n4:memory:/kubepods/pod/agent\n",
                &[("cgroup/memory/memory.limit_in_bytes", "536870912\n")],
                Some(512 * MIB),
            ),
            (
                "the first version, nested",
                "4:memory:/pod/agent\n0::/pod\n",
                &[
                    ("cgroup/memory/memory.limit_in_bytes", none),
                    ("cgroup/memory/pod/memory.limit_in_bytes", "268435456\n"),
                    ("cgroup/memory/pod/agent/memory.limit_in_bytes", "536870912\n"),
                ],
                Some(256 * MIB),
            ),
            ("other controllers", "5:cpu,cpuacct:/\n", &[("cgroup/memory/memory.limit_in_bytes", "7\n")], None),
            ("nothing is mounted", "0::/\n", &[], None),
        ];
        for (case, cgroup, files, expected) in table {
            assert_eq!(found(cgroup, files), expected, "{case}");
        }
    }

    #[test]
    fn tunnels_take_half_of_the_limit_at_most() {
        let table = [
            (None, Some(512), Some(8_192), 256),
            (Some(100), Some(512), Some(8_192), 100),
            (Some(400), Some(512), Some(8_192), 256),
            (None, None, Some(4_096), 512),
            (None, Some(1 << 43), Some(4_096), 512),
            (None, None, Some(65_536), 1_024),
            (Some(4_096), None, Some(8_192), 4_096),
        ];
        for (configured, limit, machine, expected) in table {
            let mib = |mib: Option<u64>| mib.map(|mib| mib * MIB);
            let found = share(configured, mib(limit), mib(machine)) / MIB;
            assert_eq!(found, expected, "{configured:?}, {limit:?} of {machine:?}");
        }
    }

    #[test]
    fn this_machine_says_what_it_has() {
        assert!(machine(Path::new("/proc")).is_some_and(|bytes| bytes > 64 * MIB));
    }
}
