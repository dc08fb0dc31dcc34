//! What a restart of the agent takes beside thousands of MiniClusters.

use std::time::Duration;

use anyhow::Context as _;
use tributary_tests::agent::AGENT_USER;

use crate::figures::{figure, line};
use crate::local::{create, create_many, now, prepared, watch_jobs};
use crate::operator::Operator;

/// Ends the operator as Kubernetes does, makes one more MiniCluster meanwhile, and starts the operator again: until that one
/// has its Job, everything else that is there has been read.
pub(crate) async fn restart(operator: &Operator, many: u32) -> anyhow::Result<()> {
    let mut bed = operator.bed().await?;
    let client = prepared(&bed).await?;
    let jobs = watch_jobs(&client);
    let count = usize::try_from(many)?;
    let before = bed.cpu()?;
    let began = now();
    create_many(&client, "many", count, 1).await?;
    jobs.until(count, Duration::from_secs(3600)).await?;
    let took = began.elapsed().as_secs_f64();
    // The controllers of Kubernetes make the pods of all these Jobs, and the operator tells of each.
    settled(&bed).await?;
    let (spent, resident) = (bed.cpu()?.saturating_sub(before).as_secs_f64(), bed.resident()?);
    figure(&format!("{many} MiniClusters at once → all Jobs"), &format!("{took:.0} s"), "-", "-");
    figure(
        "CPU of the operator for each of these",
        &format!("{:.1} ms", spent * 1000.0 / f64::from(many)),
        "-",
        "4 ms",
    );
    figure("RSS with all of these", &format!("{resident:.0} MiB"), "-", "-");

    bed.end().await?;
    create(&client, "meanwhile", 1).await?;
    let marker = bed.cluster().audit().marker()?;
    let started = now();
    bed.start(operator)?;
    let seen = jobs.until(count + 1, Duration::from_secs(600)).await?;
    let job = seen.get("meanwhile").context("the Job of the last MiniCluster was not seen")?;
    let ready = job.saturating_duration_since(started);
    settled(&bed).await?;
    figure("operator started → Job of one made meanwhile", &format!("{:.1} s", ready.as_secs_f64()), "-", "5 s");
    figure("CPU of this restart", &format!("{:.1} s", bed.cpu()?.as_secs_f64()), "-", "-");
    figure("RSS after it", &format!("{:.0} MiB", bed.resident()?), "-", "-");
    let requests = bed.cluster().audit().requests(AGENT_USER, marker)?;
    let own = requests.iter().filter(|event| !event.is_lease() && !event.is_long_running());
    let (reads, writes): (Vec<_>, Vec<_>) = own.partition(|event| matches!(&*event.verb, "get" | "list"));
    figure("requests that write, with the new MiniCluster's", &writes.len().to_string(), "-", "8");
    line(&format!("    and requests that read: {}", reads.len()));
    Ok(())
}

/// Waits until the operator has computed nothing for some seconds.
async fn settled(bed: &crate::operator::Bed) -> anyhow::Result<()> {
    const QUIET: Duration = Duration::from_secs(5);
    let mut last = bed.cpu()?;
    loop {
        tokio::time::sleep(QUIET).await;
        let spent = bed.cpu()?;
        if spent.saturating_sub(last) < Duration::from_millis(100) {
            return Ok(());
        }
        last = spent;
    }
}
