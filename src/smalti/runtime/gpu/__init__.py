"""What GPUs have in common, whatever their driver.

    removals → quirks        what a device is not used for, and what is known of drivers
    interface                what a device that is open can do
    pacing → pieces          how long launches take, and how they are cut by it
    streaming → program      what runs a module there
    opened → compilation     devices that are open, and programs on them
    model                    what the timing model knows of them
"""
