//! Building a [`Recipe`] into the cache: one process builds, others wait; what is in the cache is complete.

use std::{
    env,
    fs::{self, File, TryLockError},
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use tokio::time::sleep;

use super::{
    pins::{OUTPUT, Recipe, Step},
    progress::Progress,
};
use crate::{group::Group, options::Report};

const POLL: Duration = Duration::from_millis(200);
/// How many lines of the log are quoted when a step fails.
const QUOTED_LINES: usize = 15;

/// Makes `directory`, the recipe's place in the cache, unless it is `complete` by the time it is our turn. One that lacks
/// something is replaced.
pub(super) async fn build(
    complete: impl Fn() -> bool,
    recipe: &Recipe,
    directory: &Path,
    report: &Report,
) -> anyhow::Result<()> {
    let go = go()?;
    let cache = directory.parent().context("a cached build has a directory above it")?;
    fs::create_dir_all(cache).with_context(|| format!("failed to create {}", cache.display()))?;
    let _lock = lock(&directory.with_extension("lock"), report).await?;
    if complete() {
        return Ok(());
    }
    let log = directory.with_extension("log");
    report.line(&format!("building {} with {go}, once; the compiler's output is in {}", recipe.title, log.display()));

    // Unlike the lock, files of a build that was cut off can outlive it.
    let partial = directory.with_extension("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial).with_context(|| format!("failed to remove {}", partial.display()))?;
    }
    let (output, module) = (partial.join("bin"), partial.join("module"));
    for directory in [&output, &module] {
        fs::create_dir_all(directory).with_context(|| format!("failed to create {}", directory.display()))?;
    }
    for (name, text) in &recipe.files {
        fs::write(module.join(name), text).with_context(|| format!("failed to write {name}"))?;
    }
    File::create(&log).with_context(|| format!("failed to write {}", log.display()))?;
    let compiler = Compiler { group: Group::start(Duration::from_secs(1), Some(&partial))?, output, module, log };
    for step in &recipe.steps {
        compiler.run(step, report).await?;
    }
    let output = &compiler.output;
    for (from, to) in &recipe.renames {
        fs::rename(output.join(from), output.join(to)).with_context(|| format!("failed to rename {from} to {to}"))?;
    }
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| format!("failed to remove {}", directory.display()))?;
    }
    fs::rename(output, directory).with_context(|| format!("failed to create {}", directory.display()))?;
    Ok(())
}

struct Compiler {
    group: Group,
    output: PathBuf,
    module: PathBuf,
    log: PathBuf,
}

impl Compiler {
    async fn run(&self, step: &Step, report: &Report) -> anyhow::Result<()> {
        let total = self.packages(step).await?;
        let mut command = self.go();
        let output = self.output.display().to_string();
        // A directory, for `-o`, is one that ends in a slash.
        command.args(step.arguments.iter().map(|argument| argument.replace(OUTPUT, &format!("{output}/"))));
        let mut log = Log::follow(&self.log)?;
        let mut progress = Progress::start(report, step.title, total);
        let process = self.group.spawn_logged(&mut command, &self.log).context("failed to run go")?;
        let status = loop {
            let status = process.exited()?;
            log.read()?;
            progress.set(log.packages, &log.last);
            match status {
                Some(status) => break status,
                None => sleep(POLL).await,
            }
        };
        drop(progress);
        if !status.success() {
            bail!("go {} failed; {} ends with:\n{}", step.arguments[0], self.log.display(), log.tail.join("\n"));
        }
        Ok(())
    }

    /// How many packages there are to compile; modules that are not there are downloaded to find out.
    async fn packages(&self, step: &Step) -> anyhow::Result<Option<u64>> {
        if step.packages.is_empty() {
            return Ok(None);
        }
        let list = self.module.join("packages");
        let mut command = self.go();
        command.args(["list", "-deps"]).args(&step.packages);
        command.stdout(File::create(&list)?).stderr(File::options().append(true).open(&self.log)?);
        let process = self.group.spawn(&mut command).context("failed to run go")?;
        if !process.wait().await?.success() {
            let mut log = Log { file: BufReader::new(File::open(&self.log)?), ..Log::follow(&self.log)? };
            log.read()?;
            bail!("go list failed; {} ends with:\n{}", self.log.display(), log.tail.join("\n"));
        }
        Ok(Some(BufReader::new(File::open(list)?).lines().count() as u64))
    }

    fn go(&self) -> Command {
        let mut command = Command::new("go");
        command
            .current_dir(&self.module)
            .env("CGO_ENABLED", "0")
            .env("GOBIN", &self.output)
            // A person's settings for other builds do not fit this one.
            .env("GOWORK", "off")
            .env_remove("GOFLAGS")
            .env_remove("GOOS")
            .env_remove("GOARCH");
        command
    }
}

/// The end of a growing file.
struct Log {
    file: BufReader<File>,
    packages: u64,
    last: String,
    tail: Vec<String>,
}

impl Log {
    fn follow(path: &Path) -> anyhow::Result<Self> {
        let open = || {
            let mut file = File::open(path)?;
            std::io::copy(&mut file, &mut std::io::sink())?;
            Ok::<_, std::io::Error>(file)
        };
        let file = open().with_context(|| format!("failed to read {}", path.display()))?;
        Ok(Self { file: BufReader::new(file), packages: 0, last: String::new(), tail: Vec::new() })
    }

    fn read(&mut self) -> anyhow::Result<()> {
        let mut text = String::new();
        self.file.read_to_string(&mut text)?;
        for line in text.lines() {
            // `go build -v` names each package that it compiles; everything else it says begins so.
            if !line.starts_with("go: ") {
                self.packages += 1;
            }
            line.clone_into(&mut self.last);
            self.tail.push(self.last.clone());
        }
        self.tail.drain(..self.tail.len().saturating_sub(QUOTED_LINES));
        Ok(())
    }
}

/// Its version; found by a call that works, not by its name on the path.
fn go() -> anyhow::Result<String> {
    let output =
        Command::new("go").args(["env", "GOVERSION"]).current_dir(env::temp_dir()).stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        Ok(output) => {
            Err(anyhow!("{}", String::from_utf8_lossy(&output.stderr).trim()).context("go is there but does not work"))
        }
        Err(error) => Err(anyhow!(error).context("to build them, install Go 1.26 or later (https://go.dev/dl)")),
    }
}

/// Held until dropped, or until the process is gone.
async fn lock(path: &Path, report: &Report) -> anyhow::Result<File> {
    let file = File::create(path).with_context(|| format!("failed to create {}", path.display()))?;
    let mut told = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if told => {}
            Err(TryLockError::WouldBlock) => {
                report.line("another process is building the same programs: waiting for it");
                told = true;
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("failed to lock {}", path.display()));
            }
        }
        sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_complete_stays_and_what_lacks_something_is_replaced() {
        let cache = tempfile::tempdir().unwrap();
        let directory = cache.path().join("programs");
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("old"), "x").unwrap();
        let recipe = Recipe {
            name: "programs".into(),
            title: "nothing".into(),
            files: Vec::new(),
            steps: Vec::new(),
            renames: Vec::new(),
        };
        let report = Report::new(|_| {});
        let there = || directory.join("old").exists();
        build(there, &recipe, &directory, &report).await.unwrap();
        assert!(there());
        build(|| false, &recipe, &directory, &report).await.unwrap();
        assert!(!there() && directory.is_dir());
    }
}
