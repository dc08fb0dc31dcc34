//! Commands of the pages, word for word.

use std::path::Path;

/// Pages whose `console helm` fences change a release that runs, in the order in which a reader comes to them:
/// `tests/cluster/release.rs` carries them out.
pub const OF_A_RELEASE: [&str; 3] = ["src/guide/installing.md", "src/guide/operating.md", "src/guide/uninstalling.md"];

/// Pages whose `console helm` fences install a release, or take away what one has left: carried out there as well.
pub const ON_THEIR_OWN: [&str; 6] = [
    "charts/tributary/README.md",
    "examples/sites/README.md",
    "examples/cert-manager/README.md",
    "examples/gitops/README.md",
    "src/guide/uninstalling.md",
    "charts/tributary/charts/tributary-crds/README.md",
];

/// The command lines of a page's fences of one language (`console`, `console helm`), below one heading or of all of it.
///
/// # Panics
/// There is no such page, or no such heading.
pub fn commands(page: &str, heading: Option<&str>, language: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(page);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{page}: {error}"));
    let section = match heading {
        None => text.as_str(),
        Some(heading) => {
            let below = text.split(&format!("\n{heading}\n")).nth(1);
            below.unwrap_or_else(|| panic!("{page} has no {heading:?}")).split("\n## ").next().unwrap_or_default()
        }
    };
    let opening = format!("```{language}\n");
    let fences = section.split(&opening).skip(1).filter_map(|rest| rest.split("\n```").next());
    let lines = fences.flat_map(str::lines).filter_map(|line| line.strip_prefix("$ "));
    // What stands behind a command is for the reader.
    lines.map(|line| line.split(" # ").next().unwrap_or_default().trim_end().to_owned()).collect()
}
